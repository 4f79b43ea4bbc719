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
    found = collections.defaultdict(list)  # (0 forward, 1 backward, None elsewhere; kind; group size) -> collectives
    for c in program["collectives"]:
        if max(c["operand_bytes"], c["result_bytes"]) > SMALL:
            found[loops.index(c["loop"]) if c["loop"] in loops else None, c["kind"], c["group_size"]].append(c)
    count = collections.Counter({key: len(cs) for key, cs in found.items()})

    # Weights are gathered in the layers' loops, in bfloat16; sequences are gathered into products and their sums scattered.
    wanted = collections.Counter()
    if mesh.shard > 1:
        wanted += {(0, "all-gather", mesh.shard): 4, (1, "all-gather", mesh.shard): 4}
    if mesh.tensor > 1:
        wanted += {(0, "all-gather", mesh.tensor): 2, (0, "reduce-scatter", mesh.tensor): 2,
                   (1, "all-gather", mesh.tensor): 4, (1, "reduce-scatter", mesh.tensor): 3}
    gathers = {key: n for key, n in count.items() if key[0] is not None and key[1] == "all-gather"}
    assert gathers == {key: n for key, n in wanted.items() if key[1] == "all-gather"}
    assert {c["type"] for key in gathers for c in found[key]} <= {"bf16"}
    assert not [key for key in count if key[0] is not None and key[1] in ("all-to-all", "collective-permute")]
    if mesh.tensor > 1:
        assert count[0, "reduce-scatter", mesh.tensor] == wanted[0, "reduce-scatter", mesh.tensor]
        if mesh.tensor not in (mesh.shard, mesh.replicate):  # else gradients are counted with them
            assert count[1, "reduce-scatter", mesh.tensor] == wanted[1, "reduce-scatter", mesh.tensor]
    assert not [key for key in count if key[0] == 0 and key[1] == "all-reduce"]

    # No stack of layers is gathered whole.
    smallest_stack = 2 * sizes.layers * min(math.prod(s) for s in sizes.layer_matrices(1, mesh.tensor))
    if mesh.shard > 1:
        assert all(c["result_bytes"] < smallest_stack for c in found[None, "all-gather", mesh.shard])

    # Each layer's gradients are summed in float32 over the data axes. Where a device's part would be narrower than a tile of the chip
    # the compiler sums whole and cuts, so the two kinds count together.
    gradient = 4 * elements(sizes.layer_matrices(1, mesh.tensor))
    sums = [c for kind in ("reduce-scatter", "all-reduce") for group in {mesh.shard, mesh.replicate} - {1}
            for c in found[1, kind, group]]
    if mesh.shard > 1 or mesh.replicate > 1:
        assert {c["type"] for c in sums} == {"f32"}
        summed = sum(c["operand_bytes"] for c in sums)
        activations = sum(c["operand_bytes"] for c in found[1, "reduce-scatter", mesh.tensor]) if mesh.tensor in (mesh.shard, mesh.replicate) else 0
        over_replicas = gradient // mesh.shard if mesh.replicate > 1 else 0
        assert gradient + over_replicas <= summed <= gradient + over_replicas + activations + 2 * SMALL


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
