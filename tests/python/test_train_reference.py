"""The trainer's pieces against other implementations: Hugging Face's models, torch's AdamW and gradient clipping."""

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


def assert_model_equals(model, root, folder, family, device):
    """Logits, loss and gradients of the family with the weights of Hugging Face's `model`."""
    tokens = torch.randint(0, SIZES["vocab_size"], (2, 96))
    labels = torch.randint(0, SIZES["vocab_size"], (2, 96))
    labels[:, ::7] = -100

    logits = model(tokens).logits.reshape(-1, SIZES["vocab_size"])
    loss = torch.nn.functional.cross_entropy(logits, labels.reshape(-1), ignore_index=-100)
    loss.backward()

    weights = {name: p.detach() for name, p in model.named_parameters()}
    got = run_program(root, folder, "model", device, {**weights, "tokens": tokens, "labels": labels}, {**SIZES, "family": family})
    assert_close(got["logits"], logits.detach(), 1e-5, "logits")
    assert_close(got["loss"], loss.detach(), 1e-5, "loss")
    assert set(got) - {"logits", "loss"} == set(weights)
    for name, p in model.named_parameters():
        assert_close(got[name], p.grad, 1e-5, name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", [llama3, qwen3])
def test_model_equals_hugging_face(root, tmp_path, family, device):
    import transformers
    torch.manual_seed(0)
    model = family(transformers, {
        "hidden_size": SIZES["dim"], "intermediate_size": SIZES["ffn_dim"], "num_hidden_layers": SIZES["n_layers"],
        "num_attention_heads": SIZES["n_heads"], "num_key_value_heads": SIZES["n_kv_heads"], "vocab_size": SIZES["vocab_size"],
        "initializer_range": 0.05}).float()
    with torch.no_grad():
        for name, p in model.named_parameters():  # norms start at 1, where a missing weight would not show
            if "norm" in name:
                p.add_(0.2 * torch.randn_like(p))
    assert_model_equals(model, root, tmp_path, family.__name__, device)


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


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("max_norm", [0.5, 1e6], ids=["clipped", "not clipped"])
def test_adamw_and_clipping_equal_torch(root, tmp_path, device, max_norm):
    torch.manual_seed(1)
    options = {"lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
    shapes = {"a": (64, 33), "b": (7,), "c": (2, 3, 5)}
    parameters = {name: torch.nn.Parameter(torch.randn(shape)) for name, shape in shapes.items()}
    tensors = {f"parameter.{name}": p.detach().clone() for name, p in parameters.items()}
    optimizer = torch.optim.AdamW(parameters.values(), lr=options["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    norms = []
    for step in range(1, 6):
        for name, p in parameters.items():
            p.grad = torch.randn_like(p)
            tensors[f"gradient.{step}.{name}"] = p.grad.clone()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters.values(), max_norm))
        optimizer.step()

    got = run_program(root, tmp_path, "adamw", device, tensors, {**options, "max_norm": max_norm})
    for step, norm in enumerate(norms, 1):
        assert_close(got[f"norm.{step}"], norm, 1e-6, f"norm of step {step}")
        assert_close(got[f"factor.{step}"], torch.clamp(max_norm / (norm + 1e-6), max=1.0), 1e-6, f"factor of step {step}")
    for name, p in parameters.items():
        assert_close(got[f"parameter.{name}"], p.detach(), 1e-6, name)
