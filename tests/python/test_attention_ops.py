"""Attention as PyTorch's users call it: scaled_dot_product_attention of any leading dimensions, nn.MultiheadAttention,
nn.TransformerEncoder. Reference values are PyTorch's on the CPU."""

import warnings

import pytest
import torch
import torch.nn.functional as F

from tensors import same


def attention_cases():
    """name -> (query, key, value, options)"""
    torch.manual_seed(0)
    plain = {"3-D": (3,), "4-D": (2, 3), "5-D": (2, 1, 3), "2-D": ()}
    for name, leading in plain.items():
        q, k, v = torch.randn(*leading, 5, 8), torch.randn(*leading, 7, 8), torch.randn(*leading, 7, 6)
        yield name, q, k, v, {}
        yield f"{name} causal", q, k, v, {"is_causal": True}
        yield f"{name} scale", q, k, v, {"scale": 0.3}
        mask = torch.rand(5, 7) > 0.4
        mask[2] = False  # a row that may see nothing
        yield f"{name} bool mask", q, k, v, {"attn_mask": mask}
        yield f"{name} float mask", q, k, v, {"attn_mask": torch.randn(5, 7)}
        if leading:
            yield f"{name} mask of each", q, k, v, {"attn_mask": torch.randn(*leading, 5, 7)}
            yield f"{name} broadcast mask", q, k, v, {"attn_mask": torch.rand(*leading[:-1], 1, 1, 7) > 0.5}
    q = torch.randn(2, 6, 5, 8)
    yield "grouped heads", q, torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8), {"enable_gqa": True}
    yield "grouped heads masked", q, torch.randn(2, 2, 7, 8), torch.randn(2, 2, 7, 8), {"enable_gqa": True, "attn_mask": torch.rand(5, 7) > 0.3}
    yield "one head for all", q, torch.randn(2, 1, 7, 8), torch.randn(2, 1, 7, 8), {}
    yield "one batch for all", q, torch.randn(1, 6, 7, 8), torch.randn(1, 6, 7, 8), {}
    yield "transposed heads", torch.randn(2, 5, 3, 8).transpose(1, 2), torch.randn(2, 7, 3, 8).transpose(1, 2), torch.randn(2, 3, 7, 8), {}
    yield "no queries", torch.randn(2, 3, 0, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8), {}


CASES = {name: rest for name, *rest in attention_cases()}


def forward_and_backward(device, q, k, v, options):
    leaves = [x.to(device).requires_grad_() for x in (q, k, v)]
    mask = options.get("attn_mask")
    if mask is not None:
        mask = mask.to(device)
        if mask.is_floating_point():
            mask.requires_grad_()
            leaves.append(mask)
        options = {**options, "attn_mask": mask}
    out = F.scaled_dot_product_attention(*leaves[:3], **options)
    torch.manual_seed(1)
    return [out.detach(), *torch.autograd.grad(out, leaves, torch.randn(out.shape).to(device))]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_attention(case):
    q, k, v, options = case
    for got, want in zip(forward_and_backward("tpu", q, k, v, options), forward_and_backward("cpu", q, k, v, options), strict=True):
        same(got, want, rtol=1e-4, atol=1e-5)


REFUSED = {
    "head sizes": ((3, 5, 8), (3, 7, 6), (3, 7, 6), {}, "first two dimensions of batch2 tensor to be: .3, 8. but got: .3, 6."),
    "heads that differ": ((2, 6, 5, 8), (2, 2, 7, 8), (2, 2, 7, 8), {}, r"size of tensor a \(6\) must match the size of tensor b \(2\)"),
    "groups that do not divide": ((2, 6, 5, 8), (2, 4, 7, 8), (2, 4, 7, 8), {"enable_gqa": True}, "Number of heads in key and value must divide"),
    "mask and causal": ((3, 5, 8), (3, 7, 8), (3, 7, 8), {"is_causal": True, "attn_mask": torch.ones(5, 7, dtype=torch.bool)},
                        "attn_mask should not be set when is_causal=True"),
    "mask": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 8), {"attn_mask": torch.ones(4, 7)}, r"size of tensor a \(\d\) must match the size of tensor b"),
    "1-D": ((8,), (7, 8), (7, 8), {}, "at least 2 dimensional"),
}


@pytest.mark.parametrize("q, k, v, options, words", REFUSED.values(), ids=REFUSED.keys())
def test_what_the_cpu_refuses_is_refused(q, k, v, options, words):
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError, match=words):
            F.scaled_dot_product_attention(*(torch.randn(s).to(device) for s in (q, k, v)), **moved(options, device))


def test_dropout_drops_and_scales():
    torch.manual_seed(0)
    for leading in ((64,), (8, 8)):
        q, k = (torch.zeros(*leading, 16, 8, device="tpu") for _ in range(2))
        v = torch.ones(*leading, 16, 4, device="tpu").requires_grad_()
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=0.25)
        assert abs(out.mean().item() - 1) < 0.02 and out.std().item() > 0.05
        out.sum().backward()  # of the same dropped weights: both sums are over all queries and keys
        torch.testing.assert_close(v.grad.sum(), out.sum(), rtol=1e-4, atol=0)


def test_a_chosen_implementation_is_taken():
    q, k, v, options = CASES["4-D causal"]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        same(F.scaled_dot_product_attention(q.to("tpu"), k.to("tpu"), v.to("tpu"), **options),
              F.scaled_dot_product_attention(q, k, v, **options), rtol=1e-4, atol=1e-5)


# ---- modules ----------------------------------------------------------------------------------------------------------------

PADDING = torch.tensor([[False] * 6, [False] * 4 + [True] * 2, [False, True] * 3])
CAUSAL = torch.nn.Transformer.generate_square_subsequent_mask(6)
MASKS = {
    "no mask": {},
    "padding": {"key_padding_mask": PADDING},
    "bool mask": {"attn_mask": CAUSAL == -torch.inf},
    "float mask": {"attn_mask": CAUSAL},
    "both": {"key_padding_mask": PADDING, "attn_mask": CAUSAL == -torch.inf},
    "mask of each head": {"attn_mask": (torch.rand(12, 6, 6) > 0.7).logical_and(~torch.eye(6, dtype=torch.bool))},
}


def moved(options, device):
    return {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS.keys())
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
def test_multihead_attention(masks, train):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 4, batch_first=True).train(train)
    x = torch.randn(3, 6, 8)
    for weights in ({}, {"need_weights": False}, {"average_attn_weights": False}):
        with torch.set_grad_enabled(train):
            want = module(x, x, x, **masks, **weights)
            module.to("tpu")
            there = x.to("tpu")
            got = module(there, there, there, **moved(masks, "tpu"), **weights)
            module.to("cpu")
        same(got[0], want[0], rtol=1e-4, atol=1e-5)
        assert (got[1] is None) == (want[1] is None)
        if want[1] is not None:
            same(got[1], want[1], rtol=1e-4, atol=1e-5)


def test_attention_to_another_sequence():
    torch.manual_seed(0)
    for options in ({}, {"kdim": 5, "vdim": 6}, {"add_bias_kv": True}, {"add_zero_attn": True}, {"bias": False}):
        module = torch.nn.MultiheadAttention(8, 2, **options).eval()
        q, k, v = torch.randn(4, 3, 8), torch.randn(6, 3, options.get("kdim", 8)), torch.randn(6, 3, options.get("vdim", 8))
        want = module(q, k, v)[0].detach()
        same(module.to("tpu")(q.to("tpu"), k.to("tpu"), v.to("tpu"))[0].detach(), want, rtol=1e-4, atol=1e-5)


ENCODERS = {
    "relu": {},
    "gelu": {"activation": "gelu"},
    "norm first": {"norm_first": True},
    "other activation": {"activation": F.silu},
    "sequence first": {"batch_first": False},
}


@pytest.mark.parametrize("masks", ["no mask", "padding", "float mask", "both"])
@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS.keys())
def test_transformer_encoder_in_eval_mode(options, masks):
    torch.manual_seed(0)
    names = {"key_padding_mask": "src_key_padding_mask", "attn_mask": "mask"}
    masks = {names[name]: mask for name, mask in MASKS[masks].items()}
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, **{"batch_first": True, **options})
    x = torch.randn(3, 6, 8)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # of nested tensors that some of these do not take
        encoder = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        nested = torch.nn.TransformerEncoder(layer, 2).eval()
        nested.load_state_dict(encoder.state_dict())
        if not options.get("batch_first", True):
            x = x.transpose(0, 1)
        want = encoder(x, **masks)
        there = {name: mask.to("tpu") for name, mask in masks.items()}
        same(encoder.to("tpu")(x.to("tpu"), **there), want, rtol=1e-4, atol=1e-5)
        same(nested.to("tpu")(x.to("tpu"), **there), want, rtol=1e-4, atol=1e-5)


def test_a_whole_transformer():
    torch.manual_seed(0)
    model = torch.nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True)
    source, target = torch.randn(2, 5, 8), torch.randn(2, 4, 8)
    mask = model.generate_square_subsequent_mask(4)
    for train in (False, True):
        model.train(train)
        want = model(source, target, tgt_mask=mask)
        model.zero_grad()
        want.sum().backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        model.to("tpu")
        got = model(source.to("tpu"), target.to("tpu"), tgt_mask=mask.to("tpu"))
        got.sum().backward()
        same(got.detach(), want.detach(), rtol=1e-4, atol=1e-5)
        for name, p in model.named_parameters():
            same(p.grad, grads[name], rtol=1e-3, atol=1e-4)
        model.zero_grad()
        model.to("cpu")
