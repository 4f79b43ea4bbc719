"""Modules that move to the device `tpu` keep what PyTorch keeps on the CPU. References are the same modules on the CPU."""

import copy
import weakref

import pytest
import torch
from torch.nn.utils import parametrizations, parametrize


class Doubled(torch.nn.Module):
    def forward(self, x):
        return 2 * x


class Net(torch.nn.Module):
    """Tied weights, a frozen one, buffers, and the parametrizations that PyTorch offers."""

    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(11, 8)
        self.normed = parametrizations.weight_norm(torch.nn.Linear(8, 8))
        self.spectral = parametrizations.spectral_norm(torch.nn.Linear(8, 8))
        self.doubled = torch.nn.Linear(8, 8)
        parametrize.register_parametrization(self.doubled, "weight", Doubled())
        self.frozen = torch.nn.Linear(8, 8).requires_grad_(False)
        self.head = torch.nn.Linear(8, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in (self.normed, self.spectral, self.doubled, self.frozen):
            x = x + torch.tanh(layer(x)) * self.scale
        return self.head(x)


TOKENS = torch.arange(10).reshape(2, 5)


def net():
    torch.manual_seed(0)
    return Net().eval()  # spectral_norm's power iteration stands still


def loss(model):
    parameter = next(model.parameters())
    tokens = TOKENS.to(parameter.device)
    return torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1).float(), tokens.flatten())


def there_by_apply(model):
    return model._apply(lambda t: t.to("tpu"))


def there_by_data(model):
    for tensor in [*model.parameters(), *model.buffers()]:
        tensor.data = tensor.data.to("tpu")
        if tensor.grad is not None:
            tensor.grad = tensor.grad.to("tpu")
    return model


CONVERSIONS = {
    "to": lambda m: m.to("tpu"),
    "tpu": lambda m: m.tpu(),
    "device and dtype": lambda m: m.to("tpu", torch.float64),
    "dtype after": lambda m: m.to("tpu").to(torch.float64),
    "there and back": lambda m: m.to("tpu").cpu(),
    "twice": lambda m: m.to("tpu").cpu().to("tpu"),
    "apply": there_by_apply,
    "data": there_by_data,
}


@pytest.mark.parametrize("convert", CONVERSIONS.values(), ids=CONVERSIONS.keys())
def test_conversions_keep_what_the_cpu_keeps(convert):
    model, reference = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss(model).backward()
    loss(reference).backward()
    before = dict(model.named_parameters(remove_duplicate=False))
    buffers = list(dict(model.named_buffers()))
    references = {name: weakref.ref(p) for name, p in before.items()}
    versions = {name: p._version for name, p in before.items()}
    seen = []
    model.doubled.bias.register_hook(lambda g: seen.append("tensor hook"))
    model.head.weight.register_post_accumulate_grad_hook(lambda p: seen.append("accumulated"))
    reference.to(torch.float64 if convert in (CONVERSIONS["device and dtype"], CONVERSIONS["dtype after"]) else torch.float32)

    convert(model)

    after = dict(model.named_parameters(remove_duplicate=False))
    device = next(model.parameters()).device.type
    assert device == ("cpu" if convert is CONVERSIONS["there and back"] else "tpu")
    assert all(after[name] is p and references[name]() is p for name, p in before.items()) and len(after) == len(before)
    assert {name: p._version for name, p in after.items()} == versions
    assert model.head.weight is model.embedding.weight
    assert list(dict(model.named_buffers())) == buffers
    expected = dict(reference.named_parameters(remove_duplicate=False))
    for name, p in after.items():
        assert p.is_leaf and p.requires_grad == expected[name].requires_grad and p.device.type == device
        assert (p.grad is None) == (expected[name].grad is None)
        if p.grad is not None:
            assert p.grad.device == p.device and p.grad.dtype == p.dtype
    # The optimizer, made before, moves what the model computes with.
    for m, o in ((model, optimizer), (reference, torch.optim.SGD(reference.parameters(), lr=0.1))):
        o.zero_grad()
        loss(m).backward()
        o.step()
    assert seen == ["tensor hook", "accumulated"]
    torch.testing.assert_close(loss(model).cpu(), loss(reference))
    for name, p in after.items():
        torch.testing.assert_close(p.cpu(), expected[name])
        if p.grad is not None:
            torch.testing.assert_close(p.grad.cpu(), expected[name].grad)


def test_to_empty_keeps_parameters_and_their_ties():
    model = net()
    before = dict(model.named_parameters(remove_duplicate=False))
    model.to_empty(device="tpu")
    after = dict(model.named_parameters(remove_duplicate=False))
    assert all(after[name] is p and p.device.type == "tpu" for name, p in before.items())
    model.load_state_dict(net().state_dict())
    torch.testing.assert_close(loss(model).cpu(), loss(net()))


def test_a_parameters_data_changes_its_device():
    p = torch.nn.Parameter(torch.ones(2, 3))
    view, version = p.detach(), p._version
    p.data = torch.zeros(3, device="tpu")
    assert p.device.type == "tpu" and p.shape == (3,) and p._version == version
    assert view.device.type == "cpu" and view.sum() == 6  # what looked at the old elements still does
    p.sum().backward()
    assert p.grad.device.type == "tpu"
    p.grad = None
    p.data = torch.full((2,), 5.0)
    (p * 2).sum().backward()
    assert torch.equal(p.grad, torch.full((2,), 2.0))
    for other in (torch.empty(3, device="meta"), torch.eye(3).to_sparse()):
        with pytest.raises(RuntimeError, match="incompatible tensor type"):
            torch.zeros(3, device="tpu").data = other


def test_copies_of_a_module_keep_ties():
    model = copy.deepcopy(net().to("tpu"))
    assert model.head.weight is model.embedding.weight and model.head.weight.device.type == "tpu"
    torch.testing.assert_close(loss(model).cpu(), loss(net()))


# ---- families of Hugging Face's whose weights are tied ---------------------------------------------------------------------


SIZES = {"vocab_size": 31, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}


def gpt2(t):
    return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=31, n_positions=16, n_embd=16, n_layer=1, n_head=2))


def llama(t):
    return t.LlamaForCausalLM(t.LlamaConfig(**SIZES, num_key_value_heads=1, tie_word_embeddings=True))


def bert(t):
    return t.BertForMaskedLM(t.BertConfig(**SIZES, max_position_embeddings=16))


def t5(t):
    config = t.T5Config(vocab_size=31, d_model=16, d_kv=8, d_ff=24, num_layers=1, num_heads=2, decoder_start_token_id=0)
    return t.T5ForConditionalGeneration(config)


@pytest.mark.parametrize("family", [gpt2, llama, bert, t5], ids=lambda f: f.__name__)
def test_gradients_of_tied_families_equal_the_cpus(family):
    import transformers

    torch.manual_seed(0)
    want = family(transformers).eval()
    got = copy.deepcopy(want)
    parameters = dict(got.named_parameters())
    got.to("tpu")
    assert got.get_output_embeddings().weight is got.get_input_embeddings().weight
    tokens = torch.randint(2, 31, (2, 8), generator=torch.Generator().manual_seed(1))
    for model in (want, got):
        ids = tokens.to(model.device)
        model(input_ids=ids, labels=ids).loss.backward()
    for name, p in want.named_parameters():
        assert parameters[name].grad.device.type == "tpu"
        torch.testing.assert_close(parameters[name].grad.cpu(), p.grad, msg=lambda m, name=name: f"{name}: {m}")
