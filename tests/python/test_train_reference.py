"""The trainer's pieces against other implementations: Hugging Face's models, torch's optimizers and gradient clipping."""

import re
import subprocess

import pytest
import torch
from safetensors.torch import load_file, save_file

DEVICES = ["cpu", "tpu"]
SIZES = {"vocab_size": 320, "n_layers": 3, "dim": 128, "n_heads": 8, "n_kv_heads": 4, "ffn_dim": 192}


def run_program(root, folder, mode, device, tensors, metadata):
    program = root / "build" / "train_reference"
    assert program.exists(), f"{program} is not built; run `make build`"
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / "in.safetensors", {k: str(v) for k, v in metadata.items()})
    done = subprocess.run([str(program), mode, device, str(folder / "in.safetensors"), str(folder / "out.safetensors")],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return load_file(folder / "out.safetensors")


def assert_close(got, expected, tolerance, name):
    assert got.shape == expected.shape, name
    error = (got.double() - expected.double()).abs().max().item()
    assert error <= tolerance * expected.abs().max().item(), f"{name}: off by {error}, largest value {expected.abs().max().item()}"


def llama3(transformers, sizes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **sizes, rms_norm_eps=1e-5, max_position_embeddings=131072, tie_word_embeddings=False, rope_theta=500000.0,
        rope_scaling={"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                      "original_max_position_embeddings": 8192}))


def qwen3(transformers, sizes):
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(
        **sizes, head_dim=128, rms_norm_eps=1e-6, max_position_embeddings=40960, tie_word_embeddings=True, rope_theta=1e6,
        rope_scaling={"rope_type": "default", "rope_theta": 1e6}))


def hugging_face(transformers, family):
    """A model of random weights, which bfloat16 holds exactly."""
    torch.manual_seed(0)
    model = family(transformers, {
        "hidden_size": SIZES["dim"], "intermediate_size": SIZES["ffn_dim"], "num_hidden_layers": SIZES["n_layers"],
        "num_attention_heads": SIZES["n_heads"], "num_key_value_heads": SIZES["n_kv_heads"], "vocab_size": SIZES["vocab_size"],
        "initializer_range": 0.05}).float()
    with torch.no_grad():
        for name, p in model.named_parameters():  # norms start at 1, where a missing weight would not show
            if "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
            p.copy_(p.bfloat16())
    return model


def batch(rows, length):
    tokens = torch.randint(0, SIZES["vocab_size"], (rows, length))
    labels = torch.randint(0, SIZES["vocab_size"], (rows, length))
    labels[:, ::7] = -100
    return tokens, labels


def pass_through(model, tokens, labels):
    """Logits, loss and gradients, in float32, of Hugging Face's model."""
    model.zero_grad()
    logits = model(tokens).logits.reshape(-1, SIZES["vocab_size"])
    loss = torch.nn.functional.cross_entropy(logits.float(), labels.reshape(-1), ignore_index=-100)
    loss.backward()
    return {"logits": logits.detach().float(), "loss": loss.detach(), **{name: p.grad.float() for name, p in model.named_parameters()}}


def computed(model, root, folder, family, device, tokens, labels, dtype="float32", attention=""):
    """The same of the family with the weights of `model`."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    got = run_program(root, folder, "model", device, {**weights, "tokens": tokens, "labels": labels},
                      {**SIZES, "family": family, "dtype": dtype, "attention": attention})
    assert set(got) - {"logits", "loss"} == set(weights)
    return {**got, "logits": got["logits"].flatten(0, 1).float()}


def assert_model_equals(model, root, folder, family, device, size=(2, 96), attention=""):
    tokens, labels = batch(*size)
    got = computed(model, root, folder, family, device, tokens, labels, attention=attention)
    for name, expected in pass_through(model, tokens, labels).items():
        assert_close(got[name], expected, 1e-5, name)


@pytest.mark.parametrize("family, device, size, attention", [
    *((family, device, (2, 96), "") for family in (llama3, qwen3) for device in DEVICES),
    (llama3, "tpu", (1, 1024), "dense"), (llama3, "tpu", (1, 1024), "chunked"), (qwen3, "tpu", (1, 1024), "chunked"),
])
def test_model_equals_hugging_face(root, tmp_path, family, device, size, attention):
    import transformers
    assert_model_equals(hugging_face(transformers, family), root, tmp_path, family.__name__, device, size, attention)


@pytest.mark.parametrize("family, device, size, attention", [
    (llama3, "cpu", (2, 96), ""), (llama3, "tpu", (2, 96), "dense"), (qwen3, "tpu", (1, 1024), "chunked"),
])
def test_bfloat16_loses_no_more_than_hugging_face(root, tmp_path, family, device, size, attention):
    """Both differ from the float32 model as rounding has it. Its measure is what Hugging Face's model loses in bfloat16, in the root of the
    mean square of each tensor; of the loss, one number, that of the logits."""
    import transformers
    model = hugging_face(transformers, family)
    tokens, labels = batch(*size)
    exact = pass_through(model, tokens, labels)
    got = computed(model, root, tmp_path, family.__name__, device, tokens, labels, "bfloat16", attention)
    theirs = pass_through(model.bfloat16(), tokens, labels)
    off = lambda values, name: (values[name].double() - exact[name].double()).square().mean().sqrt().item()
    for name in exact:
        bound = off(theirs, "logits" if name == "loss" else name)
        assert off(got, name) <= 1.25 * bound, f"{name}: off by {off(got, name)}, Hugging Face's by {bound}"
    assert off(got, "logits") > 0  # it is bfloat16


@pytest.mark.parametrize("family, architecture", [("llama3", "LlamaForCausalLM"), ("qwen3", "Qwen3ForCausalLM")])
def test_hugging_face_opens_what_is_exported(root, flambeau, tmp_path, family, architecture):
    import transformers
    sizes = [word for name, value in SIZES.items() for word in (f"--model.{name}", str(value))]
    flambeau("train", f"configs/{family}/debug.toml", "--device", "cpu", "--data.source", root / "src" / "nn", "--data.bigram", "false",
             "--training.steps", "1", "--training.max_context_length", "32", "--validator.enable", "false", "--sampling.tokens", "0",
             "--checkpoint.last_save_in_hf", *sizes)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "outputs" / "hugging_face", dtype=torch.float32)
    assert type(model).__name__ == architecture
    torch.manual_seed(2)
    assert_model_equals(model, root, tmp_path, family, "cpu")


def torch_optimizers(name, values, groups):
    """torch.optim's optimizers over [(parameters, own values)], one a group: of `name`, or of the group's own."""
    def options(name, v):
        common = {"lr": v["lr"], "weight_decay": v["weight_decay"]}
        if name == "SGD":
            return {**common, "momentum": v["momentum"], "dampening": v["dampening"], "nesterov": v["nesterov"]}
        return {**common, "betas": (v["beta1"], v["beta2"]), "eps": v["eps"]}

    return [getattr(torch.optim, own.get("name", name))([{"params": p, **options(own.get("name", name), {**values, **own})}]) for p, own in groups]


USUAL = {"lr": 3e-3, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "momentum": 0.0, "dampening": 0.0, "nesterov": False}
GROUPS = {"a": {"lr": 1e-2, "weight_decay": 0.0}, "^[abc]$": {"weight_decay": 0.3}}  # the first takes "a" and "ba", the second what is left: "b" and "c"
OPTIMIZERS = {
    "AdamW": ("AdamW", {}, {}),
    "AdamW groups": ("AdamW", {}, {**GROUPS, "d": {"beta1": 0.5, "beta2": 0.7, "eps": 1e-3}}),
    "Adam": ("Adam", {"eps": 1e-5}, {}),
    "Adam groups": ("Adam", {}, GROUPS),
    "SGD": ("SGD", {}, {}),
    "SGD momentum": ("SGD", {"momentum": 0.9, "dampening": 0.25}, {}),
    "SGD nesterov groups": ("SGD", {"momentum": 0.9, "nesterov": True}, {**GROUPS, "d": {"momentum": 0.5}}),
    "AdamW, SGD for some": ("AdamW", {}, {"a": {"name": "SGD", "lr": 1e-2, "momentum": 0.9}, "b": {"name": "SGD", "weight_decay": 0.0}}),
    "SGD with momentum, Adam and AdamW for some": ("SGD", {"momentum": 0.9, "nesterov": True}, {"a": {"name": "Adam"}, "c": {"name": "AdamW", "beta1": 0.5}}),
    "SGD one group without momentum": ("SGD", {"momentum": 0.9, "dampening": 0.25}, {"c": {"momentum": 0.0}}),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout, case", [
    *(("apart", case) for case in OPTIMIZERS),
    *(("stacked", case) for case in OPTIMIZERS if "group" in case or "some" in case),
    *(("bfloat16 states", case) for case in ("AdamW", "SGD momentum"))])
def test_optimizers_and_clipping_equal_torch(root, tmp_path, device, case, layout):
    torch.manual_seed(1)
    name, changed, groups = OPTIMIZERS[case]
    values = {**USUAL, **changed}
    max_norm = 5.0  # clips some of the steps
    shapes = dict.fromkeys(("a", "b", "ba", "c", "d"), (3, 5)) if layout == "stacked" else {
        "a": (64, 3), "b": (7,), "ba": (1,), "c": (2, 3, 5), "d": (3, 3)}
    parameters = {key: torch.nn.Parameter(torch.randn(shape)) for key, shape in shapes.items()}
    tensors = {f"parameter.{key}": p.detach().clone() for key, p in parameters.items()}
    members = [[] for _ in range(len(groups) + 1)]
    for key, p in parameters.items():
        members[next((i for i, pattern in enumerate(groups) if re.search(pattern, key)), -1)].append(p)
    optimizers = torch_optimizers(name, values, [(m, own) for m, own in zip(members, [*groups.values(), {}]) if m])
    rates = [o.param_groups[0]["lr"] for o in optimizers]
    norms = []
    for step in range(1, 11):
        for key, p in parameters.items():
            p.grad = torch.randn_like(p) * step / 10
            tensors[f"gradient.{step}.{key}"] = p.grad.clone()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm))
        for o, rate in zip(optimizers, rates):
            o.param_groups[0]["lr"] = rate / step  # one schedule for all groups
            o.step()

    def literal(value):
        return str(value).lower() if isinstance(value, bool) else repr(value)

    lines = ["[training]", f"max_norm = {max_norm}", "[optimizer]", f'name = "{name}"']
    lines += [f"{key} = {literal(value)}" for key, value in values.items()]
    lines += [f'state_dtype = "{"bfloat16" if layout == "bfloat16 states" else "float32"}"']
    for pattern, own in groups.items():
        lines += ["[[optimizer.param_groups]]", f"pattern = '{pattern}'", *(f"{key} = {value!r}" for key, value in own.items())]
    (tmp_path / "config.toml").write_text("\n".join(lines))

    got = run_program(root, tmp_path, "optimizer", device, tensors, {"config": tmp_path / "config.toml", "stacked": int(layout == "stacked")})
    assert min(norms) < max_norm < max(norms)
    for step, norm in enumerate(norms, 1):
        assert_close(got[f"norm.{step}"], norm, 1e-6, f"norm of step {step}")
        assert_close(got[f"factor.{step}"], torch.clamp(max_norm / (norm + 1e-6), max=1.0), 1e-6, f"factor of step {step}")
    # Rounded stochastically, a state is within 2^-7 of itself: so far is each of 10 steps, of up to lr / n times the largest gradient.
    tolerance = 1e-3 if layout == "bfloat16 states" else 1e-6
    for key, p in parameters.items():
        assert_close(got[f"parameter.{key}"], p.detach(), tolerance, key)
