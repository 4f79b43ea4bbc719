"""The training step in JAX on the CPU: `jax_worker.py FOLDER unrolled|scan`. See protocol.py.

One jitted function, its state donated. `unrolled` is an ordinary loop over a list of layers, `scan` is lax.scan over stacked
ones.
"""

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

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


class JaxContender(protocol.Contender):
    def __init__(self, mode, case, weights, data):
        self.stacked = mode == "scan"
        self.case, self.weights = case, weights
        self.tokens, self.labels = data["tokens"].astype(np.int32), data["labels"].astype(np.int32)
        self.table = data["rope.cos"], data["rope.sin"]

    def build(self):
        params = parameters(self.case, self.weights, self.stacked)
        zeros = lambda: jax.tree.map(jnp.zeros_like, params)  # twice: what is donated may not be shared
        self.training_state = (params, zeros(), zeros(), jnp.zeros((), jnp.float32))
        begin = time.perf_counter()
        step = jax.jit(make_step(self.case, self.table), donate_argnums=0)
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
