"""TPU kernels of causal attention, forward and backward, from JAX's Splash attention, for programs that run without JAX.

    python tpu_attention.py --versions
    python tpu_attention.py --batch 1 --heads 32 --kv-heads 8 --length 8192 --head-dim 128 --dtype bfloat16 --documents \
        --block-q 512 --block-kv 512

The first prints the versions that a kernel depends on, the second writes JSON to standard output. Needs JAX, no TPU and no
torch. Exit code 3 and one line on standard error where JAX is absent or has no kernel for the shape. `flambeau` runs it when it compiles
for a TPU, and keeps what it says in a cache (src/kernels/flash_attention.cc).

What is written: for each of `forward`, `dq` and `dkv` a custom call: its configuration (the kernel, with an estimate of what it costs,
which the compiler schedules by), its operands, its results. An operand
is an input by name, or a constant (0, 1, 2, ... where no values are said), whose dimension i becomes dimension dims[i] of `shape`. Inputs:
query [B, H, S, E] (scaled already), key and value [B, K, S, E], documents [B, S], gradient and output like query, logsumexp and delta
[B, H, S], delta the sum over E of gradient x output. Results have names where they matter: output, logsumexp (with a last dimension
of copies), dq, dk, dv. Kernels of one row have no dimension B: dims then begin with dimension 1 of an input, and results are without it.
"""

import argparse
import json
import math
import sys

FORMAT = 2
NO_KERNEL = 3
INPUTS = ("query", "key", "value", "gradient", "documents")
BYTES = {"i8": 1, "i16": 2, "bf16": 2, "f16": 2, "i32": 4, "f32": 4}
PRODUCTS = {"forward": 2, "dq": 3, "dkv": 4}  # of two blocks: scores and output; scores, their gradient, dq; the same, dk and dv


def versions() -> str:
    from importlib import metadata

    return ", ".join(f"{name} {metadata.version(name)}" for name in ("jax", "jaxlib"))


def cost(kernel: str, request: argparse.Namespace, arrays: list[tuple[list[int], int]]) -> dict:
    """What one call of `kernel` ("forward", "dq", "dkv") computes and moves: FLOPs, transcendentals, bytes of HBM. A multiply-add is two
    FLOPs; blocks that the diagonal crosses are computed whole, those beyond it left out. `arrays`: shape and bytes an element of each
    operand and result."""
    q, kv, length = request.block_q, request.block_kv, request.length
    element = 2 if request.dtype == "bfloat16" else 4
    blocks = sum(-(-(i + 1) * q // kv) for i in range(length // q))  # pairs that hold a score
    heads = request.batch * request.heads
    pairs = heads * blocks * q * kv
    # An array is read once but for the blocks that go by in the inner loop: keys and values, or what belongs to queries.
    if kernel == "dkv":
        row, rows, whole = 2 * (request.head_dim * element + 4), q, heads * length  # query, gradient; logsumexp, delta
    else:
        row, rows, whole = 2 * request.head_dim * element, kv, request.batch * request.kv_heads * length
    again = (heads * blocks * rows - whole) * row
    return {"flops": 2 * PRODUCTS[kernel] * pairs * request.head_dim, "transcendentals": pairs,
            "bytes_accessed": sum(math.prod(shape) * size for shape, size in arrays) + max(again, 0)}


def with_cost(op, kernel: str, request: argparse.Namespace) -> str:
    """The configuration of the custom call `op` with its cost."""
    arrays = [(Module.shape(v), BYTES[Module.element(v)]) for v in (*op.operands, *op.results)]
    config = json.loads(op.attributes["backend_config"].value)
    config["custom_call_config"]["cost_estimate"] = cost(kernel, request, arrays)
    return json.dumps(config, separators=(",", ":"))


def both_passes(request: argparse.Namespace, interpret: bool = False):
    """The function (query, key, value, gradient, documents?) -> (output, dq, dk, dv) and the shapes that it takes. With `interpret` its
    kernels compute on any device."""
    import jax
    import jax.numpy as jnp
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    q, kv, length = request.block_q, request.block_kv, request.length
    sizes = splash.BlockSizes(block_q=q, block_kv=kv, block_kv_compute=kv, block_q_dkv=q, block_kv_dkv=kv, block_kv_dkv_compute=kv,
                              block_q_dq=q, block_kv_dq=kv)
    mask = masks.MultiHeadMask([masks.CausalMask((length, length))] * request.heads)
    attend = splash.make_splash_mha_single_device(mask, block_sizes=sizes, interpret=interpret)

    def one_row(query, key, value, documents=None):
        return attend(query, key, value, segment_ids=None if documents is None else splash.SegmentIds(documents, documents))

    def run(query, key, value, gradient, *documents):
        output, pullback = jax.vjp(lambda *qkv: jax.vmap(one_row)(*qkv, *documents), query, key, value)
        return output, *pullback(gradient)

    heads = jax.ShapeDtypeStruct((request.batch, request.heads, length, request.head_dim), jnp.dtype(request.dtype))
    kv_heads = jax.ShapeDtypeStruct((request.batch, request.kv_heads, length, request.head_dim), jnp.dtype(request.dtype))
    documents = [jax.ShapeDtypeStruct((request.batch, length), jnp.int32)] if request.documents else []
    return run, (heads, kv_heads, kv_heads, heads, *documents)


def lowered(request: argparse.Namespace):
    """A StableHLO module of that function for TPUs."""
    import jax

    run, shapes = both_passes(request)
    return jax.jit(run).trace(*shapes).lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")


class Module:
    """Where the values of a module come from, through its calls."""

    def __init__(self, module):
        from jax.interpreters import mlir

        self.ir = mlir.ir
        self.module = module  # owns the operations
        self.functions = {f.attributes["sym_name"].value: f for f in module.body.operations if "sym_name" in f.attributes}
        self.callers = {}
        for function in self.functions.values():
            for op in function.regions[0].blocks[0].operations:
                if op.operation.name == "func.call":
                    self.callers[op.attributes["callee"].value] = op
        self.main = self.functions["main"]

    @staticmethod
    def ending(function):
        return list(function.regions[0].blocks[0].operations)[-1]

    def origin(self, value):
        """What `value` is a broadcast of: (kind, what, dims), dims[i] the dimension of `value` that dimension i has become, without
        dimensions that were dropped: a first one of one row, a last one of copies. Kinds: input (its number), constant (its attribute),
        call (a custom call and the number of its result), other (an operation)."""
        kind, what, dims = self.source(value)
        return kind, what, [d for d in dims if d is not None]

    def source(self, value):
        dims = list(range(len(self.shape(value))))
        while True:
            if isinstance(value, self.ir.BlockArgument):
                function = value.owner.owner.attributes["sym_name"].value
                if function == "main":
                    return "input", value.arg_number, dims
                value = self.callers[function].operands[value.arg_number]
                continue
            op = value.owner
            name = op.name
            index = value.result_number
            if name == "func.call":
                value = self.ending(self.functions[op.attributes["callee"].value]).operands[index]
            elif name == "stablehlo.broadcast_in_dim":
                step = [int(d) for d in op.attributes["broadcast_dimensions"]]
                value, dims = op.operands[0], [dims[d] for d in step]
            elif name == "stablehlo.reshape" and self.shape(op.operands[0]) == [1, *self.shape(value)]:
                value, dims = op.operands[0], [None, *dims]
            elif name == "stablehlo.reshape" and [1, *self.shape(op.operands[0])] == self.shape(value):
                value, dims = op.operands[0], dims[1:]
            elif name in ("stablehlo.reshape", "stablehlo.slice") and self.drops_copies(op, value):
                value = op.operands[0]  # one of the copies in the last dimension stands for all
                dims = dims + [None] * (len(self.shape(value)) - len(dims))
            elif name == "stablehlo.constant":
                return "constant", op.attributes["value"], dims
            elif name == "stablehlo.custom_call":
                return "call", (op, index), dims
            else:
                return "other", op, dims

    def drops_copies(self, op, value) -> bool:
        before, after = self.shape(op.operands[0]), self.shape(value)
        return before[:-1] == after[:len(before) - 1] and after[len(before) - 1:] in ([], [1])

    @staticmethod
    def shape(value) -> list[int]:
        return [int(d) for d in value.type.shape]

    @staticmethod
    def element(value) -> str:
        return str(value.type.element_type)


class Unknown(Exception):
    """The module is not what is expected of this version of JAX."""


def describe(module: Module, request: argparse.Namespace) -> dict:
    import numpy as np

    returned = [module.origin(v) for v in module.ending(module.main).operands]
    if any(kind != "call" for kind, _, _ in returned):
        raise Unknown("a result is not a kernel's")
    names = {}  # (custom call, result) -> name
    for name, (_, (op, index), _) in zip(("output", "dq", "dk", "dv"), returned):
        names[op, index] = name
    forward, dq, dkv = (returned[i][1][0] for i in (0, 1, 2))

    def operand(value):
        kind, what, dims = module.origin(value)
        result = {"shape": module.shape(value), "type": module.element(value), "dims": dims}
        if kind == "input":
            return {"input": INPUTS[what], **result}
        if kind == "constant":
            array = np.array(what)
            if array.ndim == 1 and (array == np.arange(len(array))).all():
                return {"constant": {"shape": list(array.shape)}, **result}
            return {"constant": {"shape": list(array.shape), "values": [int(x) for x in array.flatten()]}, **result}
        if kind == "call" and what[0] == forward:
            name = names.setdefault(what, "logsumexp")
            result["dims"] = dims[:len(module.shape(forward.results[what[1]])) - 1] if name == "logsumexp" else dims
            return {"input": name, **result}
        if kind == "other" and what.name == "stablehlo.dot_general":
            return {"input": "delta", **result}
        raise Unknown(f"an operand comes from {what}")

    def call(op, kernel):
        return {"target": op.attributes["call_target_name"].value, "config": with_cost(op, kernel, request),
                "operands": [operand(v) for v in op.operands],
                "results": [{"shape": module.shape(v), "type": module.element(v)} for v in op.results]}

    # The forward pass last: what others take of it is named by then.
    calls = {kernel: (op, call(op, kernel)) for kernel, op in (("dq", dq), ("dkv", dkv), ("forward", forward))}
    for op, description in calls.values():
        for index, result in enumerate(description["results"]):
            if (op, index) in names:
                result["name"] = names[op, index]
    return {name: description for name, (_, description) in calls.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description="TPU kernels of causal attention")
    parser.add_argument("--versions", action="store_true")
    for name in ("batch", "heads", "kv-heads", "length", "head-dim", "block-q", "block-kv"):
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"))
    parser.add_argument("--documents", action="store_true")
    request = parser.parse_args()
    try:
        if request.versions:
            print(versions())
            return 0
        kernels = describe(Module(lowered(request)), request)
    except Exception as error:  # whatever it is, there is no kernel
        print(f"{type(error).__name__}: {' '.join(str(error).split())}"[:500], file=sys.stderr)
        return NO_KERNEL
    json.dump({"format": FORMAT, "versions": versions(), **kernels}, sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
