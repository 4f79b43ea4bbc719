"""JAX's contender in bench/compile_time.py: `jax_compile_worker.py CASE scan|unrolled`. The step is that of jax_worker.py; only
shapes are needed. Each layer is recomputed in the backward pass (jax.checkpoint), as Flambeau's contender does it."""

import dataclasses
import json
import sys
import time

import jax
import jax.numpy as jnp

import jax_worker
import protocol


def shapes(case, stacked):
    D, F, E = case.dim, case.ffn_dim, case.head_dim
    layer = {"wq": (D, case.heads * E), "wk": (D, case.kv_heads * E), "wv": (D, case.kv_heads * E), "wo": (case.heads * E, D),
             "w1": (D, F), "w3": (D, F), "w2": (F, D), "attention_norm": (D,), "ffn_norm": (D,)}
    if stacked:
        layers = {key: (case.layers, *shape) for key, shape in layer.items()}
    else:
        layers = [layer] * case.layers
    tree = {"embedding": (case.vocab_size, D), "layers": layers, "norm": (D,), "head": (D, case.vocab_size)}
    return jax.tree.map(lambda s: jax.ShapeDtypeStruct(s, jnp.float32), tree, is_leaf=lambda s: isinstance(s, tuple))


def main():
    answers = protocol.take_standard_output()
    fields = {field.name for field in dataclasses.fields(protocol.Case)}
    given = json.loads(sys.argv[1])
    case = protocol.Case(**{name: given.get(name, 0) for name in fields} | {"norm_epsilon": 1e-5, "beta1": 0.9, "beta2": 0.95})
    jax_worker.block = jax.checkpoint(jax_worker.block, static_argnums=0)
    params = shapes(case, sys.argv[2] == "scan")
    tokens = jax.ShapeDtypeStruct((case.batch, case.context), jnp.int32)
    table = (jnp.zeros((case.context, case.head_dim // 2)),) * 2
    jax.block_until_ready(jnp.ones(2) + 1)  # what the first op of a process pays is not the step's

    begin, processors = time.perf_counter(), time.process_time()
    step = jax.jit(jax_worker.make_step(case, table), donate_argnums=0)
    lowered = step.lower((params, params, params, jax.ShapeDtypeStruct((), jnp.float32)), tokens, tokens)
    traced = time.perf_counter()
    lowered.compile()
    end = time.perf_counter()
    print(json.dumps({"trace_s": traced - begin, "compile_s": end - traced, "total_s": end - begin,
                      "processor_s": time.process_time() - processors}), file=answers)


if __name__ == "__main__":
    main()
