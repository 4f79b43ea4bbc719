"""A training step of a Llama-like model for a pod, as one would write it in JAX today: what bench/plan_vs_jax.py compares with.

The mathematics is that of src/train/step.h: bfloat16 products with float32 master weights, gradients made and summed in float32, the
cross-entropy in pieces, clipping of the global norm, the finite check and AdamW. Written for speed and memory:

* one scan over stacked layers, its body under jax.checkpoint;
* FSDP by NamedSharding: weights are cast before they are gathered, and a gradient is constrained to where its weight is stored, so that
  the partitioner makes a reduce-scatter of it (custom_vjp of `dense`); tensor and sequence parallelism by constraints on activations;
* attention that never holds the scores: Pallas' Splash kernels, or blocks in plain JAX (blockwise_attention.py);
* loss and gradient of the head in one pass over the pieces, in a shard_map, so that what is summed over devices is summed once.

Legend: B batch, S sequence, D width, K key-value heads, G query heads of each, P = G + 2 (query heads, key, value), E head width, F
feed-forward width, V vocabulary, N tokens.
"""

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import blockwise_attention

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python" / "flambeau"))
import tpu_attention

DATA = ("replicate", "shard")


@dataclasses.dataclass(frozen=True)
class Model:
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_dim: int
    vocab_size: int
    tied: bool = False
    qk_norm: bool = False
    norm_epsilon: float = 1e-5
    rope_theta: float = 500000.0
    rope_factor: float = 1.0  # Llama 3.1's scaling of low frequencies; 1: none


@dataclasses.dataclass(frozen=True)
class Options:
    context: int
    checkpoint: str = "full"        # none | selective | full
    attention: str = "blockwise"    # blockwise | splash
    block: int = 0                  # of attention; 0: chosen
    documents: bool = False         # positions and documents are inputs; attention stays within a document
    loss_chunks: int = 8
    compute: str = "bfloat16"
    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.1
    max_norm: float = 1.0


# ---- parameters ----------------------------------------------------------------------------------------------------------


def parameter_table(m):
    """Name -> shape and how it is stored; the layers' have a first dimension of layers."""
    D, K, Pn, E, F, V, L = m.dim, m.kv_heads, m.heads // m.kv_heads + 2, m.head_dim, m.ffn_dim, m.vocab_size, m.layers
    layers = {
        "attention_norm": ((D,), P("shard")), "ffn_norm": ((D,), P("shard")),
        "qkv": ((K, Pn, E, D), P("tensor", None, None, "shard")), "wo": ((K, Pn - 2, E, D), P("tensor", None, None, "shard")),
        "w13": ((2, F, D), P(None, "tensor", "shard")), "w2": ((F, D), P("tensor", "shard")),
    }
    if m.qk_norm:
        layers |= {"q_norm": ((E,), P(None)), "k_norm": ((E,), P(None))}
    table = {"embedding": ((V, D), P("tensor", "shard")), "norm": ((D,), P("shard")),
             "layers": {name: ((L, *shape), P(None, *spec)) for name, (shape, spec) in layers.items()}}
    if not m.tied:
        table["head"] = ((V, D), P("tensor", "shard"))
    return table


def is_row(x):
    return isinstance(x, tuple)


def gathered(spec):
    """A weight as it is used: FSDP's axis is gone, tensor parallelism's stays."""
    return P(*(None if axis == "shard" else axis for axis in spec))


# ---- layers --------------------------------------------------------------------------------------------------------------


class Step:
    """The step of one model on one mesh: `step(state, batch, lr)`; state is (parameters, first moments, second moments, count)."""

    def __init__(self, model, options, mesh):
        self.m, self.o, self.mesh = model, options, mesh
        self.dtype = jnp.dtype(options.compute)
        self.table = parameter_table(model)
        self.whole = P(DATA, None, None)                                                  # the sequence together: into products
        self.stream = P(DATA, "tensor", None) if mesh.shape["tensor"] > 1 else self.whole  # the residual stream

    def constrain(self, x, spec):
        return lax.with_sharding_constraint(x, NamedSharding(self.mesh, spec))

    def hint(self, x, forward, backward):
        """A constraint, and another one on the gradient."""

        @jax.custom_vjp
        def identity(x):
            return self.constrain(x, forward)

        identity.defvjp(lambda x: (identity(x), None), lambda _, g: (self.constrain(g, backward),))
        return identity(x)

    def split_input(self, x_BSD):
        """Into products that tensor parallelism splits: the sequence is gathered, and the gradient's partial sums are scattered over it."""
        return self.hint(x_BSD, self.whole, self.stream)

    def summed_output(self, x_BSD):
        """Out of them, the other way round."""
        return self.hint(x_BSD, self.stream, self.whole)

    def use(self, w, spec):
        """Cast, then gathered."""
        return self.constrain(self.constrain(w.astype(self.dtype), spec), gathered(spec))

    def dense(self, equation, x, w, spec):
        """einsum whose weight is gathered for it and whose weight gradient is float32 and stays where the weight is stored."""
        a, b, c = equation.replace("->", ",").split(",")

        @jax.custom_vjp
        def product(x, w):
            return jnp.einsum(equation, x, self.use(w, spec))

        def forward(x, w):
            used = self.use(w, spec)
            return jnp.einsum(equation, x, used), (x, used)

        def backward(saved, g):
            x, used = saved
            dx = jnp.einsum(f"{c},{b}->{a}", g, used)
            dw = jnp.einsum(f"{c},{a}->{b}", g, x, preferred_element_type=jnp.float32)
            return dx, self.constrain(dw, spec)

        product.defvjp(forward, backward)
        return checkpoint_name(product(x, w), "matmul")

    def rms_norm(self, x, w):
        wide = x.astype(jnp.float32)
        return (wide * lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + self.m.norm_epsilon) * w).astype(x.dtype)

    def rope_table(self, positions):
        """cos and sin, [1 or B, 1, 1, S, E / 2]."""
        m = self.m
        frequencies = 1 / m.rope_theta ** (np.arange(0, m.head_dim, 2) / m.head_dim)
        if m.rope_factor != 1:
            wavelengths = 2 * np.pi / frequencies
            smooth = np.clip((8192 / wavelengths - 1) / (4 - 1), 0, 1)
            frequencies = smooth * frequencies + (1 - smooth) * frequencies / m.rope_factor
        angles = positions.astype(jnp.float32)[:, None, None, :, None] * frequencies.astype(np.float32)
        return jnp.cos(angles), jnp.sin(angles)

    @staticmethod
    def rope(x_BKGSE, cos, sin):
        a, b = jnp.split(x_BKGSE.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate((a * cos - b * sin, b * cos + a * sin), axis=-1).astype(x_BKGSE.dtype)

    def attention(self, q_BKGSE, k_BKSE, v_BKSE, documents_BS):
        """Each device its rows and heads. Returns [B, K, G, S, E]."""
        run = {"splash": splash, "blockwise": blockwise_attention.attention}[self.o.attention]
        arguments, specs = [q_BKGSE, k_BKSE, v_BKSE], [P(DATA, "tensor")] * 3
        if documents_BS is not None:
            arguments, specs = arguments + [documents_BS], specs + [P(DATA, None)]
        return jax.shard_map(functools.partial(run, block=self.o.block), mesh=self.mesh, in_specs=tuple(specs),
                             out_specs=P(DATA, "tensor"), check_vma=False)(*arguments)

    def block(self, x_BSD, w, rope_table, documents_BS):
        m = self.m
        G = m.heads // m.kv_heads
        spec = lambda name: P(*self.table["layers"][name][1][1:])
        h = self.split_input(self.rms_norm(x_BSD, w["attention_norm"]))
        qkv_BKPSE = self.constrain(self.dense("BSD,KPED->BKPSE", h, w["qkv"], spec("qkv")), P(DATA, "tensor", None, None, None))
        q, k, v = qkv_BKPSE[:, :, :G], qkv_BKPSE[:, :, G:G + 1], qkv_BKPSE[:, :, G + 1]
        if m.qk_norm:
            q, k = self.rms_norm(q, w["q_norm"]), self.rms_norm(k, w["k_norm"])
        q, k = self.rope(q, *rope_table) * self.dtype.type(m.head_dim**-0.5), self.rope(k, *rope_table)[:, :, 0]
        y = checkpoint_name(self.attention(q, k, v, documents_BS), "attention")
        x_BSD = self.constrain(x_BSD + self.summed_output(self.dense("BKGSE,KGED->BSD", y, w["wo"], spec("wo"))), self.stream)
        h = self.split_input(self.rms_norm(x_BSD, w["ffn_norm"]))
        gate_up_TBSF = self.constrain(self.dense("BSD,TFD->TBSF", h, w["w13"], spec("w13")), P(None, DATA, None, "tensor"))
        h = self.constrain(jax.nn.silu(gate_up_TBSF[0]) * gate_up_TBSF[1], P(DATA, None, "tensor"))
        return self.constrain(x_BSD + self.summed_output(self.dense("BSF,FD->BSD", h, w["w2"], spec("w2"))), self.stream)

    def hidden(self, params, batch):
        tokens_BS = batch["tokens"]
        positions = batch["positions"] if self.o.documents else jnp.arange(self.o.context, dtype=jnp.int32)[None]
        table, documents = self.rope_table(positions), batch["documents"] if self.o.documents else None
        body = lambda x, w: (self.block(x, w, table, documents), None)
        if self.o.checkpoint != "none":
            policy = {"full": jax.checkpoint_policies.nothing_saveable,
                      "selective": jax.checkpoint_policies.save_only_these_names("matmul", "attention")}[self.o.checkpoint]
            body = jax.checkpoint(body, policy=policy, prevent_cse=False)
        x_BSD = self.constrain(self.embed(params["embedding"], tokens_BS), self.stream)
        x_BSD, _ = lax.scan(body, x_BSD, params["layers"])
        return self.split_input(self.rms_norm(x_BSD, params["norm"]))

    # ---- the two ends of the vocabulary ----------------------------------------------------------------------------------

    def embed(self, table_VD, tokens_BS):
        spec = self.table["embedding"][1]

        @jax.custom_vjp
        def lookup(table_VD):
            return jax.shard_map(self.embed_part, mesh=self.mesh, in_specs=(gathered(spec), P(DATA, None)), out_specs=self.stream,
                                 check_vma=False)(self.use(table_VD, spec), tokens_BS)

        # Each device sums its columns of all rows, which is a fraction of summing whole rows and scattering the table.
        def backward(_, g_BSD):
            return (jax.shard_map(self.embed_gradient_part, mesh=self.mesh, in_specs=(self.whole, P(DATA, None)), out_specs=spec,
                                  check_vma=False)(self.constrain(g_BSD, self.whole), tokens_BS),)

        lookup.defvjp(lambda table: (lookup(table), None), backward)
        return lookup(table_VD)

    def own_rows(self, tokens, rows):
        """The tokens' rows within this device's part of the vocabulary, and which of them are there."""
        relative = tokens - lax.axis_index("tensor") * rows
        inside = (relative >= 0) & (relative < rows)
        return jnp.where(inside, relative, 0), inside

    def embed_part(self, table_vD, tokens_BS):
        if self.mesh.shape["tensor"] == 1:
            return table_vD[tokens_BS]
        rows, inside = self.own_rows(tokens_BS, table_vD.shape[0])
        return lax.psum_scatter(jnp.where(inside[..., None], table_vD[rows], 0), "tensor", scatter_dimension=1, tiled=True)

    def embed_gradient_part(self, g_BSD, tokens_BS):
        rows = self.m.vocab_size // self.mesh.shape["tensor"]
        g_ND = g_BSD.reshape(-1, g_BSD.shape[-1]).astype(jnp.float32)
        g_Nd = lax.all_to_all(g_ND, "shard", split_axis=1, concat_axis=0, tiled=True)
        tokens_N = lax.all_gather(tokens_BS.reshape(-1), "shard", tiled=True)
        at, inside = self.own_rows(tokens_N, rows)
        table_vd = jnp.zeros((rows, g_Nd.shape[1]), jnp.float32).at[at].add(jnp.where(inside[:, None], g_Nd, 0))
        return lax.psum(table_vd, "replicate") if self.mesh.shape["replicate"] > 1 else table_vd

    def cross_entropy(self, x_BSD, head_VD, labels_BS, valid):
        """The sum of token losses / valid. Gradients are made in the same pass, so logits are computed once and never kept."""
        spec = self.table["embedding"][1]
        split = self.mesh.shape["tensor"] > 1
        parts = [axis for axis in DATA if self.mesh.shape[axis] > 1]

        def pieces(x_BSD, w_vD, labels_BS, valid):
            B, S, D = x_BSD.shape
            C = self.o.loss_chunks
            cut = lambda t: jnp.moveaxis(t.reshape(B, C, S // C, *t.shape[2:]), 1, 0)

            def piece(carry, xs):
                loss, dw_vD = carry
                x_BcD, labels_Bc = xs
                logits = jnp.einsum("BcD,vD->Bcv", x_BcD, w_vD, preferred_element_type=jnp.float32)
                at, inside = self.own_rows(labels_Bc, w_vD.shape[0])
                is_label = (jnp.arange(w_vD.shape[0], dtype=jnp.int32) == at[..., None]) & inside[..., None]
                largest = jnp.max(logits, -1)
                largest = lax.pmax(largest, "tensor") if split else largest
                sums = jnp.stack((jnp.sum(jnp.exp(logits - largest[..., None]), -1), jnp.sum(jnp.where(is_label, logits, 0), -1)))
                total, label = lax.psum(sums, "tensor") if split else sums
                lse = largest + jnp.log(total)
                share = (labels_Bc != -100) / valid
                dlogits = jnp.exp(logits - lse[..., None]) * share[..., None] - is_label * share[..., None]
                dlogits = dlogits.astype(self.dtype)
                dx = jnp.einsum("Bcv,vD->BcD", dlogits, w_vD, preferred_element_type=jnp.float32 if split else self.dtype)
                dw = jnp.einsum("Bcv,BcD->vD", dlogits, x_BcD, preferred_element_type=jnp.float32)
                return (loss + jnp.sum((lse - label) * share), dw_vD + dw), dx

            (loss, dw), dx = lax.scan(piece, (jnp.float32(0), jnp.zeros(w_vD.shape, jnp.float32)), (cut(x_BSD), cut(labels_BS)))
            dx = jnp.moveaxis(dx, 0, 1).reshape(B, S, D)
            if split:
                dx = lax.psum_scatter(dx, "tensor", scatter_dimension=1, tiled=True).astype(self.dtype)
            dw = lax.psum_scatter(dw, "shard", scatter_dimension=1, tiled=True)
            dw = lax.psum(dw, "replicate") if self.mesh.shape["replicate"] > 1 else dw
            return lax.psum(loss, parts) if parts else loss, dx, dw

        def all_of(x, head):
            return jax.shard_map(pieces, mesh=self.mesh, in_specs=(self.whole, gathered(spec), P(DATA, None), P()),
                                 out_specs=(P(), self.stream, spec), check_vma=False)(x, self.use(head, spec), labels_BS, valid)

        @jax.custom_vjp
        def loss_of(x, head):
            return all_of(x, head)[0]

        def forward(x, head):
            loss, dx, dw = all_of(x, head)
            return loss, (dx, dw)

        loss_of.defvjp(forward, lambda saved, g: (saved[0] * g.astype(saved[0].dtype), saved[1] * g))
        return loss_of(x_BSD, head_VD)

    # ---- the step --------------------------------------------------------------------------------------------------------

    def loss(self, params, batch):
        valid = jnp.maximum(jnp.sum(batch["labels"] != -100), 1).astype(jnp.float32)
        head = params["embedding"] if self.m.tied else params["head"]
        return self.cross_entropy(self.hidden(params, batch), head, batch["labels"], valid)

    def __call__(self, state, batch, lr):
        o = self.o
        params, exp_avg, exp_avg_sq, count = state
        loss, grads = jax.value_and_grad(self.loss)(params, batch)
        grad_norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(grads)))
        finite = jnp.isfinite(loss) & jnp.isfinite(grad_norm)
        scale = jnp.minimum(1.0, o.max_norm / (grad_norm + 1e-6))
        count = count + 1
        correction1, correction2 = 1 - o.beta1**count, 1 - o.beta2**count

        def update(p, m, v, g):
            g = g * scale
            new_m = o.beta1 * m + (1 - o.beta1) * g
            new_v = o.beta2 * v + (1 - o.beta2) * g * g
            step = new_m / correction1 / (jnp.sqrt(new_v / correction2) + o.epsilon) + o.weight_decay * p
            return tuple(jnp.where(finite, new, old) for new, old in ((p - lr * step, p), (new_m, m), (new_v, v)))

        new = jax.tree.map(update, params, exp_avg, exp_avg_sq, grads)
        params, exp_avg, exp_avg_sq = jax.tree.transpose(jax.tree.structure(params), jax.tree.structure((0, 0, 0)), new)
        return (params, exp_avg, exp_avg_sq, count), (loss, grad_norm)

    # ---- lowering --------------------------------------------------------------------------------------------------------

    def shardings(self):
        """Of the state and of a batch."""
        on = lambda spec: NamedSharding(self.mesh, spec)
        params = jax.tree.map(lambda row: on(row[1]), self.table, is_leaf=is_row)
        names = ["tokens", "labels"] + (["positions", "documents"] if self.o.documents else [])
        return (params, params, params, on(P())), {name: on(P(DATA, None)) for name in names}

    def lower(self, rows, platform):
        """The step as StableHLO for `rows` sequences; nothing is allocated and no device of the platform is needed."""
        state, batch = self.shardings()
        params = jax.tree.map(lambda row: jax.ShapeDtypeStruct(row[0], jnp.float32), self.table, is_leaf=is_row)
        tokens = jax.ShapeDtypeStruct((rows, self.o.context), jnp.int32)
        scalar = jax.ShapeDtypeStruct((), jnp.float32)
        none = NamedSharding(self.mesh, P())
        step = jax.jit(self, in_shardings=(state, batch, none), out_shardings=(state, (none, none)), donate_argnums=0)
        return step.trace((params, params, params, scalar), dict.fromkeys(batch, tokens), scalar).lower(lowering_platforms=(platform,))


def block_length(asked, length):
    return min(asked or 512, length)


def splash(q_BKGSE, k_BKSE, v_BKSE, documents_BS=None, *, block):
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel, splash_attention_mask as masks

    B, K, G, S, E = q_BKGSE.shape
    block = block_length(block, S)
    sizes = kernel.BlockSizes(block_q=block, block_kv=block, block_kv_compute=block, block_q_dkv=block, block_kv_dkv=block,
                              block_kv_dkv_compute=block, block_q_dq=block, block_kv_dq=block)
    mask = masks.MultiHeadMask([masks.CausalMask((S, S)) for _ in range(K * G)])
    attend = kernel.make_splash_mha(mask=mask, block_sizes=sizes, head_shards=1, q_seq_shards=1)
    q_BHSE = q_BKGSE.reshape(B, K * G, S, E)
    if documents_BS is None:
        y_BHSE = jax.vmap(attend)(q_BHSE, k_BKSE, v_BKSE)
    else:
        y_BHSE = jax.vmap(lambda q, k, v, d: attend(q, k, v, segment_ids=kernel.SegmentIds(d, d)))(q_BHSE, k_BKSE, v_BKSE, documents_BS)
    return y_BHSE.reshape(q_BKGSE.shape)


def note_costs(module, block):
    """Splash does not say what its kernels cost; Flambeau's say it. Here they say the same, so that both are counted alike."""
    from jax.interpreters import mlir

    kernels = {"fwd": "forward", "dq": "dq", "dkv": "dkv"}

    def note(op):
        if op.name == "stablehlo.custom_call" and op.attributes["call_target_name"].value == "tpu_custom_call":
            kernel = kernels[op.attributes["kernel_name"].value.split("_")[2]]  # splash_mha_dq_...
            *batch, heads, length, head_dim = tpu_attention.Module.shape(op.operands[2])  # no batch where it is of one row
            shape = argparse.Namespace(batch=math.prod(batch), heads=heads, kv_heads=tpu_attention.Module.shape(op.operands[3])[-3],
                                       length=length, head_dim=head_dim,
                                       dtype={"bf16": "bfloat16", "f32": "float32"}[tpu_attention.Module.element(op.operands[2])],
                                       block_q=block_length(block, length), block_kv=block_length(block, length))
            op.attributes["backend_config"] = mlir.ir.StringAttr.get(tpu_attention.with_cost(op, kernel, shape))
        return mlir.ir.WalkResult.ADVANCE

    with module.context:
        module.operation.walk(note)


# ---- as a program --------------------------------------------------------------------------------------------------------


def main():
    """jax_pod_step.py REQUEST OUTPUT: writes the step's StableHLO text for TPUs. REQUEST is JSON: model and options as the classes above,
    mesh {axis: size}, rows. Answers with one line of JSON."""
    request, output = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
    begin = time.perf_counter()
    mesh = AbstractMesh(tuple(request["mesh"].values()), tuple(request["mesh"]), axis_types=(AxisType.Auto,) * len(request["mesh"]))
    step = Step(Model(**request["model"]), Options(**request["options"]), mesh)
    module = step.lower(request["rows"], "tpu").compiler_ir("stablehlo")
    note_costs(module, step.o.block)
    output.write_text(str(module))
    print(json.dumps({"trace_s": time.perf_counter() - begin, "jax": jax.__version__}))


if __name__ == "__main__":
    main()
