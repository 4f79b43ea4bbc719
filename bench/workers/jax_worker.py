"""The training step in JAX on the CPU: `jax_worker.py FOLDER unrolled|scan|pod`. See protocol.py.

One jitted function, its state donated. `unrolled` is an ordinary loop over a list of layers, `scan` is lax.scan over stacked
ones, `pod` is the program of jax_pod_step.py on a mesh of one device: that it computes the same is what bench/plan_vs_jax.py
rests on.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_pod_step
import protocol

MATRICES = {
    "wq": "self_attn.q_proj", "wk": "self_attn.k_proj", "wv": "self_attn.v_proj", "wo": "self_attn.o_proj",
    "w1": "mlp.gate_proj", "w3": "mlp.up_proj", "w2": "mlp.down_proj",
}
NORMS = {"attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}


def parameters(case, weights, stacked):
    """The weights as a tree; matrices are [in, out], as JAX code has them."""

    def layer(i):
        name = f"model.layers.{i}."
        return ({short: weights[f"{name}{long}.weight"].T.copy() for short, long in MATRICES.items()}
                | {short: weights[f"{name}{long}.weight"] for short, long in NORMS.items()})

    layers = [layer(i) for i in range(case.layers)]
    if stacked:
        layers = {key: np.stack([one[key] for one in layers]) for key in layers[0]}
    tree = {"embedding": weights["model.embed_tokens.weight"], "layers": layers, "norm": weights["model.norm.weight"],
            "head": weights["lm_head.weight"].T.copy()}
    return jax.tree.map(jnp.asarray, tree)


def rms_norm(x, weight, epsilon):
    return x * lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight


def rope(x_BSHE, cos_SF, sin_SF):
    a, b = jnp.split(x_BSHE, 2, axis=-1)
    cos, sin = cos_SF[:, None], sin_SF[:, None]
    return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1)


def block(case, table, x_BSD, w):
    B, S, _ = x_BSD.shape
    h = rms_norm(x_BSD, w["attention_norm"], case.norm_epsilon)
    q = rope((h @ w["wq"]).reshape(B, S, case.heads, case.head_dim), *table)
    k = rope((h @ w["wk"]).reshape(B, S, case.kv_heads, case.head_dim), *table)
    v = (h @ w["wv"]).reshape(B, S, case.kv_heads, case.head_dim)
    y = jax.nn.dot_product_attention(q, k, v, is_causal=True)
    x_BSD = x_BSD + y.reshape(B, S, -1) @ w["wo"]
    h = rms_norm(x_BSD, w["ffn_norm"], case.norm_epsilon)
    return x_BSD + (jax.nn.silu(h @ w["w1"]) * (h @ w["w3"])) @ w["w2"]


def loss_of(case, table, params, tokens_BS, labels_BS):
    x = params["embedding"][tokens_BS]
    if isinstance(params["layers"], list):
        for w in params["layers"]:
            x = block(case, table, x, w)
    else:
        x, _ = lax.scan(lambda x, w: (block(case, table, x, w), None), x, params["layers"])
    logits_BSV = rms_norm(x, params["norm"], case.norm_epsilon) @ params["head"]
    valid_BS = labels_BS != -100
    log_probabilities = jax.nn.log_softmax(logits_BSV)
    picked_BS = jnp.take_along_axis(log_probabilities, jnp.where(valid_BS, labels_BS, 0)[..., None], axis=-1)[..., 0]
    return -jnp.sum(picked_BS * valid_BS) / jnp.sum(valid_BS)


def make_step(case, table):
    def update(p, m, v, g, count):
        m = case.beta1 * m + (1 - case.beta1) * g
        v = case.beta2 * v + (1 - case.beta2) * g * g
        corrected_m, corrected_v = m / (1 - case.beta1**count), v / (1 - case.beta2**count)
        step = corrected_m / (jnp.sqrt(corrected_v) + case.epsilon) + case.weight_decay * p
        return p - case.learning_rate * step, m, v

    def step(state, tokens_BS, labels_BS):
        params, exp_avg, exp_avg_sq, count = state
        loss, grads = jax.value_and_grad(lambda p: loss_of(case, table, p, tokens_BS, labels_BS))(params)
        grad_norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        scale = jnp.minimum(1.0, case.max_norm / (grad_norm + 1e-6))
        count = count + 1
        new = jax.tree.map(lambda p, m, v, g: update(p, m, v, g * scale, count), params, exp_avg, exp_avg_sq, grads)
        params, exp_avg, exp_avg_sq = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0, 0)), new)
        return (params, exp_avg, exp_avg_sq, count), (loss, grad_norm)

    return step


def pod_step(case):
    """jax_pod_step's step in float32, as make_step's."""
    model = jax_pod_step.Model(layers=case.layers, dim=case.dim, heads=case.heads, kv_heads=case.kv_heads, head_dim=case.head_dim,
                               ffn_dim=case.ffn_dim, vocab_size=case.vocab_size, norm_epsilon=case.norm_epsilon, rope_factor=8.0)
    options = jax_pod_step.Options(
        context=case.context, block=case.context // 4, compute="float32", beta1=case.beta1, beta2=case.beta2, epsilon=case.epsilon,
        weight_decay=case.weight_decay, max_norm=case.max_norm)
    axes = ("replicate", "shard", "tensor")
    step = jax_pod_step.Step(model, options, jax.make_mesh((1, 1, 1), axes, axis_types=(jax.sharding.AxisType.Auto,) * 3))
    return lambda state, tokens, labels: step(state, {"tokens": tokens, "labels": labels}, case.learning_rate)


def pod_parameters(case, weights):
    """The weights as jax_pod_step has them."""
    K, G, E, D = case.kv_heads, case.heads // case.kv_heads, case.head_dim, case.dim

    def layer(i):
        get = lambda name: weights[f"model.layers.{i}.{name}.weight"]
        qkv_KPED = np.concatenate([get(f"self_attn.{name}_proj").reshape(K, -1, E, D) for name in "qkv"], axis=1)
        return {"attention_norm": get("input_layernorm"), "ffn_norm": get("post_attention_layernorm"), "qkv": qkv_KPED,
                "wo": get("self_attn.o_proj").T.reshape(K, G, E, D), "w13": np.stack([get("mlp.gate_proj"), get("mlp.up_proj")]),
                "w2": get("mlp.down_proj").T}

    layers = [layer(i) for i in range(case.layers)]
    tree = {"embedding": weights["model.embed_tokens.weight"], "layers": {key: np.stack([one[key] for one in layers]) for key in layers[0]},
            "norm": weights["model.norm.weight"], "head": weights["lm_head.weight"]}
    return jax.tree.map(jnp.asarray, tree)


class JaxContender(protocol.Contender):
    def __init__(self, mode, case, weights, data):
        self.mode, self.case, self.weights = mode, case, weights
        self.tokens, self.labels = data["tokens"].astype(np.int32), data["labels"].astype(np.int32)
        self.table = data["rope.cos"], data["rope.sin"]

    def build(self):
        pod = self.mode == "pod"
        params = pod_parameters(self.case, self.weights) if pod else parameters(self.case, self.weights, self.mode == "scan")
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)  # twice: what is donated may not be shared
        self.training_state = (params, zeros(), zeros(), jnp.zeros((), jnp.float32))
        begin = time.perf_counter()
        step = jax.jit(pod_step(self.case) if pod else make_step(self.case, self.table), donate_argnums=0)
        self.compiled = step.lower(self.training_state, self.tokens[0], self.labels[0]).compile()
        return time.perf_counter() - begin

    def step(self, batch):
        result = self.compiled(self.training_state, self.tokens[batch], self.labels[batch])
        self.training_state, (loss, grad_norm) = jax.block_until_ready(result)
        return float(loss), float(grad_norm)

    def state(self):
        return [jax.tree.leaves(tree) for tree in self.training_state[:3]]


def main():
    answers = protocol.take_standard_output()
    folder, mode = sys.argv[1:]
    jax.config.update("jax_default_matmul_precision", "highest")
    case, weights, data = protocol.load(folder)
    protocol.serve(answers, JaxContender(mode, case, weights, data), len(data["tokens"]))


if __name__ == "__main__":
    main()
