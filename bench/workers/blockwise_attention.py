"""Causal attention in plain JAX that never holds the scores of a row: a running softmax over blocks of keys (Milakov and Gimelshein, 2018)
and a backward pass that makes the scores again from their logsumexp (FlashAttention-2, Dao, 2023).

One scan goes through the pairs of a block of queries and one of keys that meet the diagonal or lie below it, so that what the mask
leaves empty costs nothing. The form and the precision are those of src/ops/attention/blocks.cc. Legend: B batch, S sequence,
K key-value heads, G query heads of each, E head width, q and k within a block.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LOW = -1e30  # finite: differences of masked scores stay numbers


def attention(q_BKGSE, k_BKSE, v_BKSE, documents_BS=None, *, block=0):
    """q is scaled already. With documents [B, S], keys of the same document alone are seen. Block 0: 512. Returns [B, K, G, S, E]."""
    S = q_BKGSE.shape[3]
    block = min(block or 512, S)
    if S % block != 0:
        raise ValueError(f"expected a block that divides the sequence of {S}, got {block}")
    return blockwise(block, q_BKGSE, k_BKSE, v_BKSE, documents_BS)


def pairs(x_BKGSE, block):
    """Which block of queries and which of keys, the keys of one block of queries in order."""
    index = np.array([(i, j) for i in range(x_BKGSE.shape[3] // block) for j in range(i + 1)], np.int32)
    # Tied to the layer's values: otherwise JAX makes the masks of all pairs once, before the loop over layers, and keeps them.
    return tuple(lax.optimization_barrier((index, x_BKGSE[0, 0, 0, 0, 0]))[0].T)


def at(x, n, block, axis):
    return lax.dynamic_slice_in_dim(x, n * block, block, axis)


def put(x, part, n, block, axis):
    return lax.dynamic_update_slice_in_dim(x, part.astype(x.dtype), n * block, axis)


def dot(equation, a, b):
    return jnp.einsum(equation, a, b, preferred_element_type=jnp.float32)


def scores_of(q_BKGqE, k_BKkE, documents_BS, i, j, block):
    """Masked scores of a pair, float32 [B, K, G, q, k]."""
    index = lambda axis, n: lax.broadcasted_iota(jnp.int32, (1, block, block), axis) + n * block
    seen_Bqk = index(1, i) >= index(2, j)
    if documents_BS is not None:
        seen_Bqk = seen_Bqk & (at(documents_BS, i, block, 1)[:, :, None] == at(documents_BS, j, block, 1)[:, None, :])
    return jnp.where(seen_Bqk[:, None, None], dot("BKGqE,BKkE->BKGqk", q_BKGqE, k_BKkE), LOW)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def blockwise(block, q_BKGSE, k_BKSE, v_BKSE, documents_BS):
    return forward(block, q_BKGSE, k_BKSE, v_BKSE, documents_BS)[0]


def forward(block, q, k, v, documents_BS):
    def pair(carry, ij):
        acc, largest, total, out, lse = carry
        i, j = ij
        scores = scores_of(at(q, i, block, 3), at(k, j, block, 2), documents_BS, i, j, block)
        first = j == 0
        before = jnp.where(first, LOW, largest)
        largest = jnp.maximum(before, jnp.max(scores, -1))
        fade = jnp.exp(before - largest)
        p = jnp.exp(scores - largest[..., None])
        total = jnp.where(first, 0, total) * fade + jnp.sum(p, -1)
        acc = jnp.where(first, 0, acc) * fade[..., None] + dot("BKGqk,BKkE->BKGqE", p.astype(v.dtype), at(v, j, block, 2))
        # Written at every pair: the last one of a block of queries is what stays.
        return (acc, largest, total, put(out, acc / total[..., None], i, block, 3), put(lse, largest + jnp.log(total), i, block, 3)), None

    rows = (*q.shape[:3], block)
    zeros = functools.partial(jnp.zeros, dtype=jnp.float32)
    start = (zeros((*rows, q.shape[4])), zeros(rows), zeros(rows), jnp.zeros_like(q), zeros(q.shape[:4]))
    (_, _, _, out, lse), _ = lax.scan(pair, start, pairs(q, block))
    return out, (q, k, v, documents_BS, out, lse)


def backward(block, saved, g):
    q, k, v, documents_BS, out, lse = saved
    delta = jnp.sum(g.astype(jnp.float32) * out.astype(jnp.float32), -1)

    def pair(carry, ij):
        dq_block, dq, dk, dv = carry
        i, j = ij
        q_i, g_i, k_j = at(q, i, block, 3), at(g, i, block, 3), at(k, j, block, 2)
        p = jnp.exp(scores_of(q_i, k_j, documents_BS, i, j, block) - at(lse, i, block, 3)[..., None])
        dp = dot("BKGqE,BKkE->BKGqk", g_i, at(v, j, block, 2))
        ds = (p * (dp - at(delta, i, block, 3)[..., None])).astype(q.dtype)
        dq_block = jnp.where(j == 0, 0, dq_block) + dot("BKGqk,BKkE->BKGqE", ds, k_j)
        dk = put(dk, at(dk, j, block, 2) + dot("BKGqk,BKGqE->BKkE", ds, q_i), j, block, 2)
        dv = put(dv, at(dv, j, block, 2) + dot("BKGqk,BKGqE->BKkE", p.astype(g.dtype), g_i), j, block, 2)
        return (dq_block, put(dq, dq_block, i, block, 3), dk, dv), None

    wide = functools.partial(jnp.zeros, dtype=jnp.float32)
    start = (wide((*q.shape[:3], block, q.shape[4])), jnp.zeros_like(q), wide(k.shape), wide(v.shape))
    (_, dq, dk, dv), _ = lax.scan(pair, start, pairs(q, block))
    return dq, dk.astype(k.dtype), dv.astype(v.dtype), None


blockwise.defvjp(forward, backward)
