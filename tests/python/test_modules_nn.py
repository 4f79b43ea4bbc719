"""Modules of torch.nn on the device `tpu`, forward and backward: outputs, gradients and buffers are those of the CPU."""

import copy

import pytest
import torch
from torch import nn


def state_of(module):
    """Buffers and gradients by name."""
    grads = {f"{name}.grad": p.grad for name, p in module.named_parameters()}
    return {**dict(module.named_buffers()), **grads}


def tensors_of(value):
    """The tensors in an output, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, nn.utils.rnn.PackedSequence):
        return [value.data]
    return [t for part in value for t in tensors_of(part)]


def run(module, inputs, steps, call):
    """Outputs and input gradients of `steps` passes, then the module's state."""
    seen = []
    for _ in range(steps):
        leaves = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        outputs = tensors_of(call(module, *leaves))
        loss = sum((y.float() * torch.arange(1.0, y.numel() + 1, device=y.device).reshape(y.shape).sin()).sum()
                   for y in outputs if y.is_floating_point())
        if loss.requires_grad:
            loss.backward()
        seen += outputs + [x.grad for x in leaves]
    return seen, state_of(module)


def compare(module, *inputs, steps=2, call=lambda module, *x: module(*x), **tolerance):
    device = copy.deepcopy(module).to("tpu")
    want, want_state = run(module, inputs, steps, call)
    got, got_state = run(device, [x.to("tpu") for x in inputs], steps, call)
    tolerance = {"rtol": 1.3e-6, "atol": 2e-5, **tolerance}  # sums in another order, over two passes
    for g, w in zip(got, want, strict=True):
        if w is None:
            assert g is None
            continue
        assert g.device.type == "tpu"
        torch.testing.assert_close(g.detach().cpu(), w.detach(), **tolerance)
    assert got_state.keys() == want_state.keys()
    for name, w in want_state.items():
        if w is not None:
            torch.testing.assert_close(got_state[name].detach().cpu(), w.detach(), **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def x(*sizes, dtype=torch.float32):
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(*sizes, generator=generator).to(dtype)


MODULES = {
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), [x(2, 3, 9)]),
    "Conv1d same, unbatched": (lambda: nn.Conv1d(3, 4, 4, padding="same", dilation=2), [x(3, 9)]),
    "Conv2d": (lambda: nn.Conv2d(3, 4, (3, 2), padding=1), [x(2, 3, 6, 5)]),
    "Conv2d valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid", bias=False), [x(2, 3, 6, 5)]),
    "Conv2d grouped, reflect": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2, padding_mode="reflect"), [x(2, 4, 6, 5)]),
    "Conv2d depthwise, circular": (lambda: nn.Conv2d(3, 6, 3, padding=1, groups=3, padding_mode="circular"), [x(2, 3, 6, 5)]),
    "Conv2d channels_last": (lambda: nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last),
                             [x(2, 3, 6, 5).to(memory_format=torch.channels_last)]),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 2)), [x(1, 2, 4, 5, 4)]),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(3, 4, 3, stride=2, output_padding=1), [x(2, 3, 5)]),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), [x(2, 4, 4, 3)]),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2), [x(1, 2, 2, 3, 2)]),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), [x(4, 3)]),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), [x(4, 3, 2, 5)]),
    "BatchNorm2d eval": (lambda: nn.BatchNorm2d(3).eval(), [x(4, 3, 2, 5)]),
    "BatchNorm2d cumulative": (lambda: nn.BatchNorm2d(3, momentum=None), [x(4, 3, 2, 5)]),
    "BatchNorm2d no statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False, affine=False), [x(4, 3, 2, 5)]),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(3, eps=1e-3), [x(2, 3, 2, 3, 2)]),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True, track_running_stats=True), [x(2, 3, 4, 5)]),
    "InstanceNorm1d eval": (lambda: nn.InstanceNorm1d(3).eval(), [x(2, 3, 4)]),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), [x(2, 4, 3, 3)]),
    "MaxPool1d": (lambda: nn.MaxPool1d(3, 2, 1, return_indices=True), [x(2, 3, 8)]),
    "MaxPool2d": (lambda: nn.MaxPool2d(3, 2, 1, ceil_mode=True), [x(2, 3, 8, 7)]),
    "MaxPool2d dilated": (lambda: nn.MaxPool2d(2, 1, dilation=2, return_indices=True), [x(3, 8, 7)]),
    "MaxPool3d": (lambda: nn.MaxPool3d(2), [x(1, 2, 4, 5, 6)]),
    "AvgPool1d": (lambda: nn.AvgPool1d(3, 2, 1), [x(2, 3, 8)]),
    "AvgPool2d": (lambda: nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False), [x(2, 3, 8, 7)]),
    "AvgPool3d": (lambda: nn.AvgPool3d(2, divisor_override=3), [x(1, 2, 4, 5, 6)]),
    "AdaptiveMaxPool1d": (lambda: nn.AdaptiveMaxPool1d(3, return_indices=True), [x(2, 3, 8)]),
    "AdaptiveMaxPool2d": (lambda: nn.AdaptiveMaxPool2d((3, None)), [x(2, 3, 8, 7)]),
    "AdaptiveMaxPool3d": (lambda: nn.AdaptiveMaxPool3d(2), [x(1, 2, 4, 5, 6)]),
    "AdaptiveAvgPool1d": (lambda: nn.AdaptiveAvgPool1d(3), [x(2, 3, 8)]),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d((3, 2)), [x(2, 3, 8, 7)]),
    "AdaptiveAvgPool2d global": (lambda: nn.AdaptiveAvgPool2d(1), [x(2, 3, 8, 7)]),
    "AdaptiveAvgPool3d": (lambda: nn.AdaptiveAvgPool3d(2), [x(1, 2, 4, 5, 6)]),
    "LPPool2d": (lambda: nn.LPPool2d(2, 3, 2), [x(2, 3, 8, 7)]),
    "RNN tanh": (lambda: nn.RNN(3, 4, num_layers=2), [x(5, 2, 3)]),
    "RNN relu": (lambda: nn.RNN(3, 4, nonlinearity="relu", bidirectional=True), [x(5, 2, 3)]),
    "LSTM": (lambda: nn.LSTM(3, 4, num_layers=2, batch_first=True), [x(2, 5, 3)]),
    "LSTM bidirectional, no bias, unbatched": (lambda: nn.LSTM(3, 4, bidirectional=True, bias=False), [x(5, 3)]),
    "LSTM projected": (lambda: nn.LSTM(3, 4, proj_size=2), [x(5, 2, 3)]),
    "GRU": (lambda: nn.GRU(3, 4, num_layers=2, bidirectional=True), [x(5, 2, 3)]),
    "LSTMCell": (lambda: nn.LSTMCell(3, 4), [x(2, 3)]),
    "GRUCell": (lambda: nn.GRUCell(3, 4, bias=False), [x(2, 3), x(2, 4)]),
    "RNNCell": (lambda: nn.RNNCell(3, 4), [x(2, 3)]),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), [x(2, 8, 3, 3)]),
    "PixelUnshuffle": (lambda: nn.PixelUnshuffle(2), [x(2, 2, 4, 6)]),
    "ChannelShuffle": (lambda: nn.ChannelShuffle(2), [x(2, 4, 3, 3)]),
    "Unfold": (lambda: nn.Unfold((2, 3), padding=1, stride=2), [x(2, 3, 5, 6)]),
    "Fold": (lambda: nn.Fold((5, 6), (2, 3), padding=1, stride=2), [x(2, 18, 9)]),
    "ZeroPad2d": (lambda: nn.ZeroPad2d((1, 2, -1, 0)), [x(2, 3, 4, 5)]),
    "ConstantPad1d": (lambda: nn.ConstantPad1d(2, 3.5), [x(2, 3, 4)]),
    "ReflectionPad1d": (lambda: nn.ReflectionPad1d((2, 1)), [x(2, 3, 4)]),
    "ReflectionPad2d": (lambda: nn.ReflectionPad2d((2, 1, 0, 3)), [x(2, 3, 4, 5)]),
    "ReflectionPad3d": (lambda: nn.ReflectionPad3d(1), [x(2, 3, 2, 3, 4)]),
    "ReplicationPad1d": (lambda: nn.ReplicationPad1d((2, 5)), [x(2, 3, 4)]),
    "ReplicationPad2d": (lambda: nn.ReplicationPad2d((2, 1, 0, 3)), [x(3, 4, 5)]),
    "ReplicationPad3d": (lambda: nn.ReplicationPad3d(1), [x(2, 3, 2, 3, 4)]),
    "CircularPad2d": (lambda: nn.CircularPad2d((2, 1, 0, 3)), [x(2, 3, 4, 5)]),
    "Upsample nearest": (lambda: nn.Upsample(scale_factor=1.7), [x(2, 3, 4, 5)]),
    "Upsample linear": (lambda: nn.Upsample(size=7, mode="linear"), [x(2, 3, 4)]),
    "Upsample bilinear": (lambda: nn.Upsample(size=(7, 3), mode="bilinear", align_corners=True), [x(2, 3, 4, 5)]),
    "Upsample trilinear": (lambda: nn.Upsample(scale_factor=2, mode="trilinear"), [x(1, 2, 2, 3, 4)]),
}


@pytest.mark.parametrize("name", MODULES)
def test_module(name):
    torch.manual_seed(1)
    make, inputs = MODULES[name]
    compare(make(), *inputs)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_packed_sequences(kind):
    """Sequences of different lengths, padded again; the state of each is that after its own last element."""
    torch.manual_seed(1)

    def call(module, batch):
        packed = nn.utils.rnn.pack_padded_sequence(batch, torch.tensor([3, 5, 1]), enforce_sorted=False)
        output, state = module(packed)
        return nn.utils.rnn.pad_packed_sequence(output, total_length=6)[0], state

    compare(kind(3, 4, num_layers=2, bidirectional=True), x(5, 3, 3), call=call)


def test_a_bfloat16_batch_norm_keeps_its_statistics_in_float32():
    module = nn.BatchNorm2d(3)
    compare(module, x(4, 3, 2, 5, dtype=torch.bfloat16), rtol=1.6e-2, atol=3e-2)  # the output is rounded to bfloat16
    device = nn.BatchNorm2d(3).to("tpu")
    device(x(4, 3, 2, 5, dtype=torch.bfloat16).to("tpu"))
    assert device.running_mean.dtype == torch.float32 and device.num_batches_tracked.item() == 1


def test_second_derivatives_of_a_convolution():
    def gradients(device):
        leaves = [t.to(device).requires_grad_() for t in (x(2, 4, 5, 4), x(6, 2, 3, 3), x(6))]
        y = torch.nn.functional.conv2d(*leaves, stride=2, padding=1, groups=2)
        first = torch.autograd.grad((y ** 2).sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum((g ** 2).sum() for g in first), leaves)

    for got, want in zip(gradients("tpu"), gradients("cpu"), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-2)  # sums of thousands


def test_dropout_of_channels():
    for module, sizes in ((nn.Dropout1d(0.5), (6, 5, 4)), (nn.Dropout2d(0.5), (6, 5, 4, 3)), (nn.Dropout3d(0.5), (6, 5, 2, 3, 2))):
        y = module(torch.ones(sizes, device="tpu")).cpu()
        kept = y.flatten(2)
        assert set(kept.unique().tolist()) == {0.0, 2.0}
        assert (kept == kept[:, :, :1]).all()  # a channel as a whole


def test_dropout_between_recurrent_layers():
    lstm = nn.LSTM(3, 64, num_layers=2, dropout=0.9).to("tpu")
    batch = x(4, 2, 3).to("tpu")
    assert not torch.equal(lstm(batch)[0].cpu(), lstm(batch)[0].cpu())
    lstm.eval()
    assert torch.equal(lstm(batch)[0].cpu(), lstm(batch)[0].cpu())


class Block(nn.Module):
    """A residual block as torchvision's ResNet has it."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, images):
        out = self.norm2(self.conv2(self.norm1(self.conv1(images)).relu()))
        return (out + self.shortcut(images)).relu()


def test_a_residual_network():
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
                            Block(8, 8, 1), Block(8, 16, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))
    compare(network, x(4, 3, 32, 32), rtol=1e-4, atol=1e-3)  # eight normalisations divide by small deviations


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_training_steps_of_a_small_network(memory_format):
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3),
                            nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(8 * 2 * 2, 4))
    images, labels = x(8, 1, 12, 12), torch.arange(8) % 4

    def train(network, images, labels):
        network, images = network.to(memory_format=memory_format), images.to(memory_format=memory_format)
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses, {name: t.cpu() for name, t in network.state_dict().items()}

    got = train(copy.deepcopy(network).to("tpu"), images.to("tpu"), labels.to("tpu"))
    want = train(network, images, labels)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)  # four steps apart
    assert want[0][-1] < want[0][0]
