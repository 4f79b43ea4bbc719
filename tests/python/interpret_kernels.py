"""Computes TPU kernels of attention on the CPU, by JAX's interpreter of Pallas. Run by a Python that has JAX; test_tpu_kernels.py does.

    interpret_kernels.py attention FOLDER   for each case of FOLDER/cases.json the arrays of FOLDER/in.npz -> FOLDER/out.npz
    interpret_kernels.py programs FOLDER    the StableHLO texts FOLDER/*.mlir on the arrays of FOLDER/in.npz -> FOLDER/*.npz

The kernels are those that python/flambeau/tpu_attention.py lowers: the same function, and in programs each custom call is replaced by a call
of the kernel that it holds, interpreted.
"""

import argparse
import json
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "flambeau"))
import tpu_attention  # noqa: E402


def attention(folder):
    arrays = np.load(folder / "in.npz")
    out = {}
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        run, shapes = tpu_attention.both_passes(argparse.Namespace(**case), interpret=True)
        names = ("query", "key", "value", "gradient", "documents")[:len(shapes)]
        given = [jnp.asarray(arrays[f"{number}.{name}"], shape.dtype) for name, shape in zip(names, shapes)]
        for name, result in zip(("output", "dq", "dk", "dv"), jax.jit(run)(*given)):
            out[f"{number}.{name}"] = np.asarray(result.astype(jnp.float32))
    np.savez(folder / "out.npz", **out)


# ---- programs ---------------------------------------------------------------------------------------------------------------

ELEMENTS = {"float32": "f32", "bfloat16": "bf16", "int32": "i32", "int8": "i8"}
CUSTOM_CALL = re.compile(r'"stablehlo\.custom_call"\((?P<operands>[^)]*)\) <\{call_target_name = "tpu_custom_call".*\}> : '
                         r'\((?P<types>[^)]*)\) -> \((?P<results>[^)]*)\)')


def pallas_calls(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "pallas_call":
            yield equation
            continue
        for value in equation.params.values():
            for part in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from pallas_calls(inner)


def types_of(variables):
    return ", ".join(f"tensor<{''.join(f'{d}x' for d in v.aval.shape)}{ELEMENTS[v.aval.dtype.name]}>" for v in variables)


def interpreted(equation, name):
    """The kernel as functions of StableHLO, the one to call `name`_main."""
    run = lambda *arrays: equation.primitive.bind(*arrays, **{**equation.params, "interpret": True})
    shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
    text = str(jax.jit(run).lower(*shapes).compiler_ir("stablehlo"))
    body = text[text.index("\n") + 1:text.rindex("}")]
    return re.sub(r"@(\w+)", rf"@{name}_\1", body).replace("func.func public", "func.func private")


def without_custom_calls(text, request):
    """The program with each kernel interpreted. Which kernel a call is, its operands and results tell: all three differ."""
    run, shapes = tpu_attention.both_passes(argparse.Namespace(**request))
    names, functions = {}, []
    for number, equation in enumerate(pallas_calls(jax.make_jaxpr(run)(*shapes).jaxpr)):
        names[types_of(equation.invars), types_of(equation.outvars)] = f"kernel{number}"
        functions.append(interpreted(equation, f"kernel{number}"))
    assert len(names) == 3, f"expected three kernels of different types, got {list(names)}"

    def call(match):
        name = names[match["types"], match["results"]]
        return f"func.call @{name}_main({match['operands']}) : ({match['types']}) -> ({match['results']})"

    text = CUSTOM_CALL.sub(call, text)
    assert "custom_call" not in text
    end = text.rindex("}")
    return text[:end] + "\n".join(functions) + text[end:]


def execute(text, arrays):
    from jax._src import xla_bridge
    from jaxlib import xla_client

    backend = xla_bridge.get_backend("cpu")
    (device,) = backend.local_devices()
    executable = backend.compile_and_load(text, xla_client.DeviceList((device,)), xla_client.CompileOptions())
    results = executable.execute_sharded([jax.device_put(a, device) for a in arrays])
    return [np.asarray(shards[0]) for shards in results.disassemble_into_single_device_arrays()]


def programs(folder):
    jax.config.update("jax_enable_x64", True)
    given = np.load(folder / "in.npz")
    arrays = [given[str(i)] for i in range(len(given.files))]
    for file in sorted(folder.glob("*.mlir")):
        text = file.read_text()
        if "tpu_custom_call" in text:
            with jax.enable_x64(False):
                text = without_custom_calls(text, json.loads((folder / "kernels.json").read_text()))
        parameters = text[:text.index(") -> (")].count("%arg")
        np.savez(file.with_suffix(".npz"), *execute(text, arrays[:parameters]))


if __name__ == "__main__":
    {"attention": attention, "programs": programs}[sys.argv[1]](pathlib.Path(sys.argv[2]))
