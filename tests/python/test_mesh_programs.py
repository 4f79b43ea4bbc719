"""What TPU's compiler makes of a debug model's training step on each kind of mesh (first phase; no TPU is needed): where parameters lie,
what is communicated, where and how often.

The step is the one that `flambeau train` runs on virtual devices; its StableHLO text goes to `inspect_program`.
"""

import collections
import dataclasses
import math

import pytest

import loss_identity
from conftest import inspect_program
from loss_identity import Mesh, Run

TOPOLOGY = {4: "v5e:2x2", 8: "v5e:2x4"}
SMALL = 8192  # bytes: norms, counts and sums are not looked at


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tied: bool
    qk_norm: bool
    vocab: int = 320  # of the byte tokenizer, rounded up

    def layer_matrices(self, shard: int, tensor: int) -> list[list[int]]:
        """qkv, wo, w13, w2 of one layer as stored on one device."""
        group = self.heads // self.kv_heads
        return [[self.kv_heads // tensor, group + 2, self.head_dim, self.dim // shard], [self.dim // shard, self.heads * self.head_dim // tensor],
                [2, self.ffn // tensor, self.dim // shard], [self.dim // shard, self.ffn // tensor]]

    def parameters(self, shard: int, tensor: int) -> list[list[int]]:
        """All parameters as stored on one device, layers stacked."""
        norms = [[self.dim // shard]] * 2 + ([[self.head_dim]] * 2 if self.qk_norm else [])
        ends = [[self.dim // shard]] + [[self.vocab // tensor, self.dim // shard]] * (1 if self.tied else 2)
        return [[self.layers, *shape] for shape in self.layer_matrices(shard, tensor) + norms] + ends


SIZES = {"llama3": Sizes(6, 256, 8, 4, 32, 768, tied=False, qk_norm=False),
         "qwen3": Sizes(8, 256, 16, 8, 128, 3072, tied=True, qk_norm=True)}
MESHES = [Mesh(shard=8), Mesh(replicate=2, shard=4), Mesh(tensor=4), Mesh(shard=2, tensor=4), Mesh(replicate=2, shard=2, tensor=2)]


def elements(shapes) -> int:
    return sum(math.prod(shape) for shape in shapes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("mesh", MESHES, ids=lambda mesh: mesh.name)
@pytest.mark.parametrize("model", SIZES)
def test_step(model, mesh, tmp_path):
    step = loss_identity.train(Run(model, "bfloat16", mesh, "full", 1), ["--training.steps", "1", "--model.attention", "chunked"])  # as on a TPU
    assert "Involuntary full rematerialization" not in step.stderr
    program = inspect_program(step.programs["train_step"], tmp_path / "step.mlir", "--topology", TOPOLOGY[mesh.devices])
    sizes = SIZES[model]
    assert program["remarks"] == []
    assert program["partitions"] == mesh.devices

    # Parameters and both moments lie as the plan says; all of them are updated in place.
    stored = collections.Counter(tuple(p["dims"]) for p in program["parameters"] if p["aliased"])
    expected = collections.Counter(tuple(shape) for shape in sizes.parameters(mesh.shard, mesh.tensor) for _ in range(3))
    assert stored == expected

    # The head's gradient, float32 and whole on every device, is summed and scattered before the backward pass of the layers begins.
    barriers = [line for line in step.programs["train_step"].splitlines() if '"stablehlo.optimization_barrier"' in line]
    assert len(barriers) == 1 and f"tensor<{sizes.vocab}x{sizes.dim}xf32>" in barriers[0]

    loops = [i for i, loop in enumerate(program["loops"]) if loop["trips"] == sizes.layers and loop["parent"] == -1]
    assert len(loops) == 2, "one loop over the layers forward, one backward"
    found = collections.defaultdict(list)  # (0 forward, 1 backward, None elsewhere; kind; axes) -> collectives
    for c in program["collectives"]:
        if max(c["operand_bytes"], c["result_bytes"]) > SMALL:
            found[loops.index(c["loop"]) if c["loop"] in loops else None, c["kind"], c["axes"]].append(c)

    # Weights are gathered in the layers' loops, in bfloat16; so are sequences, into products.
    wanted = collections.Counter()
    if mesh.shard > 1:
        wanted += {(0, "all-gather", "shard"): 4, (1, "all-gather", "shard"): 4}
    if mesh.tensor > 1:
        wanted += {(0, "all-gather", "tensor"): 2, (1, "all-gather", "tensor"): 4}
    gathers = {key: cs for key, cs in found.items() if key[0] is not None and key[1] == "all-gather"}
    assert {key: len(cs) for key, cs in gathers.items()} == wanted
    assert {c["type"] for cs in gathers.values() for c in cs} <= {"bf16"}
    assert not [key for key in found if key[0] is not None and key[1] == "all-to-all"]

    # Sums over devices. Where a device's part would be narrower than a tile of the chip, and of tensors as small as these over all of a
    # slice, the compiler sums whole and cuts; others become a ring of permutes, which counts once. So the three kinds count together.
    def sums(loop, over):
        rings = {}
        whole = []
        for (where, kind, axes), cs in found.items():
            if where != loop or (axes == "tensor") != (over == "tensor"):
                continue
            if kind in ("reduce-scatter", "all-reduce"):
                whole += cs
            if kind == "collective-permute":
                rings |= {c["op_name"]: c for c in cs}
        return [*whole, *rings.values()]

    # Parts of products: in bfloat16, as they are used.
    for loop, number in enumerate((2, 3)):
        assert [c["type"] for c in sums(loop, "tensor")] == (["bf16"] * number if mesh.tensor > 1 else [])
    assert not sums(0, "data")

    # No stack of layers is gathered whole.
    smallest_stack = 2 * sizes.layers * min(math.prod(s) for s in sizes.layer_matrices(1, mesh.tensor))
    assert all(c["result_bytes"] < smallest_stack for c in found[None, "all-gather", "shard"])

    # Each layer's gradients are summed in float32 over the data axes.
    gradient = 4 * elements(sizes.layer_matrices(1, mesh.tensor))
    if mesh.shard > 1 or mesh.replicate > 1:
        assert {c["type"] for c in sums(1, "data")} == {"f32"}
        summed = sum(c["operand_bytes"] for c in sums(1, "data"))
        over_replicas = gradient // mesh.shard if mesh.replicate > 1 else 0
        assert gradient + over_replicas <= summed <= gradient + over_replicas + 2 * SMALL


@pytest.mark.timeout(900)
def test_replicas_on_two_slices(tmp_path):
    """Weights are gathered and gradients scattered within a slice; between slices gradients alone are summed."""
    step = loss_identity.train(Run("llama3", "bfloat16", Mesh(replicate=2, shard=4), "full", 1), ["--training.steps", "1"])
    program = inspect_program(step.programs["train_step"], tmp_path / "step.mlir", "--topology", "v5e:2x2", "--slices", "2", "--whole")
    assert program["partitions"] == 8 and program["remarks"] == []
    large = [c for c in program["collectives"] if max(c["operand_bytes"], c["result_bytes"]) > SMALL]
    within = [c for c in large if c["axes"] == "shard"]
    between = [c for c in large if c["axes"] == "replicate"]
    assert len(within) + len(between) == len(large)
    assert {c["group_size"] for c in within} == {4} and {(c["group_size"], c["kind"], c["type"]) for c in between} == {(2, "all-reduce", "f32")}
    in_loops = collections.Counter(c["kind"] for c in within if c["loop"] != -1)
    assert in_loops["all-gather"] == 8 and in_loops["reduce-scatter"] >= 1


@pytest.mark.timeout(900)
def test_weights_may_stay_gathered(tmp_path):
    """parallelism.fsdp_reshard_after_forward = "never": the backward loop gathers nothing."""
    run = Run("llama3", "bfloat16", Mesh(shard=8), "full", 1)
    gathers = {}
    for policy in ("default", "never"):
        step = loss_identity.train(run, ["--training.steps", "1", "--parallelism.fsdp_reshard_after_forward", policy])
        program = inspect_program(step.programs["train_step"], tmp_path / "step.mlir", "--topology", TOPOLOGY[8])
        gathers[policy] = sum(c["kind"] == "all-gather" and c["loop"] != -1 and c["result_bytes"] > SMALL for c in program["collectives"])
    assert gathers == {"default": 8, "never": 4}
