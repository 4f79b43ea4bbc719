"""What the device `tpu` refuses: PyTorch's errors, of PyTorch's classes, that say where. References are PyTorch's on the CPU."""

import inspect
import multiprocessing.reduction
import os
import shutil
import subprocess
import sys

import pytest
import torch
import torch.multiprocessing

from conftest import pythons
from tensors import X

FAR = 2**40

# ---- sizes ------------------------------------------------------------------------------------------------------------------

SIZES = {
    "empty": lambda x: torch.empty(-1, device=x.device),
    "empty, far": lambda x: torch.empty(FAR, FAR, device=x.device),
    "zeros": lambda x: torch.zeros(2, -3, device=x.device),
    "ones, far": lambda x: torch.ones(FAR, FAR, device=x.device),
    "full": lambda x: torch.full((-1,), 2.0, device=x.device),
    "full, far": lambda x: torch.full((FAR, FAR), 2.0, device=x.device),
    "rand": lambda x: torch.rand(-1, device=x.device),
    "randn, far": lambda x: torch.randn(FAR, FAR, device=x.device),
    "randint": lambda x: torch.randint(5, (-1,), device=x.device),
    "randperm": lambda x: torch.randperm(-1, device=x.device),
    "new_empty": lambda x: x.new_empty(-2),
    "empty_strided": lambda x: torch.empty_strided((2, -1), (1, 1), device=x.device),
    "empty_strided, far": lambda x: torch.empty_strided((FAR, FAR), (FAR, 1), device=x.device),
    "eye": lambda x: torch.eye(-1, device=x.device),
    "linspace": lambda x: torch.linspace(0, 1, -1, device=x.device),
    "arange": lambda x: torch.arange(0, 1, -1, device=x.device),
    "tril_indices": lambda x: torch.tril_indices(-1, 2, device=x.device),
    "repeat": lambda x: x.repeat(-1, 2),
    "repeat, far": lambda x: x.repeat(FAR, 2**20),
    "tile, far": lambda x: torch.tile(x, (FAR, 2**20)),
    "repeat_interleave": lambda x: x.repeat_interleave(-1),
    "expand": lambda x: x.expand(-2, 3, 4),
    "expand, other": lambda x: x.expand(5, 4),
    "view": lambda x: x.view(-2, 3),
    "view, far": lambda x: x.view(FAR, FAR),
    "reshape": lambda x: x.reshape(5, -1),
    "as_strided": lambda x: x.as_strided((5, 5), (4, 1)),
    "as_strided, negative": lambda x: x.as_strided((2, 2), (-1, 1)),
    "as_strided, size": lambda x: x.as_strided((-2, 2), (1, 1)),
    "as_strided, offset": lambda x: x.as_strided((2, 2), (1, 1), -1),
    "as_strided, far": lambda x: x.as_strided((FAR, FAR), (FAR, FAR)),
    "resize_": lambda x: x.resize_(-1),
    "resize_, one of two": lambda x: x.resize_(-1, 3),
    "resize_, far": lambda x: x.resize_(FAR, FAR),
    "resize_, farther": lambda x: x.resize_(2**62),
    "resize_, format": lambda x: x.resize_(2, 2, memory_format=torch.channels_last),
    "resize_, kept format": lambda x: x.resize_(2, 2, memory_format=torch.preserve_format),
    "set_": lambda x: x.set_(x.untyped_storage(), 0, (2, -2), (1, 1)),
    "set_, offset": lambda x: x.set_(x.untyped_storage(), -1, (2, 2), (2, 1)),
    "set_, other device": lambda x: x.set_(torch.ones(3, device="meta").untyped_storage(), 0, (2,), (1,)),
    "unfold": lambda x: x.unfold(0, 5, 1),
    "unfold, step": lambda x: x.unfold(0, 2, 0),
    "narrow": lambda x: x.narrow(0, 2, 3),
    "narrow, negative": lambda x: x.narrow(0, 0, -1),
    "pad": lambda x: torch.nn.functional.pad(x, (-3, -2)),
    "split": lambda x: x.split(-1),
    "chunk": lambda x: x.chunk(0),
    "storage": lambda x: x.untyped_storage().resize_(-1),
}


@pytest.mark.parametrize("call", SIZES.values(), ids=SIZES.keys())
def test_sizes_that_are_none(call):
    x = X.to("tpu")
    with pytest.raises(Exception) as want:
        call(X.clone())
    with pytest.raises(type(want.value)) as got:
        call(x)
    if call not in (SIZES["pad"], SIZES["storage"]):  # whose words are of how the CPU does it
        assert str(want.value).splitlines()[0][:40] in str(got.value)
    assert x.shape == X.shape and x.stride() == X.stride() and torch.equal(x.cpu(), X)  # as it was


def test_a_resize_keeps_what_fits():
    for sizes in ((2, 3), (5, 4), (0,), (3, 4)):
        want, got = X.clone(), X.to("tpu")
        kept = min(12, torch.Size(sizes).numel())
        assert torch.equal(got.resize_(sizes).cpu().flatten()[:kept], want.resize_(sizes).flatten()[:kept])
        assert got.shape == want.shape and got.stride() == want.stride()
    turned = X.to("tpu").t()
    assert turned.resize_(4, 3).stride() == (1, 4)  # of the same sizes: nothing changes
    shaped = torch.empty(0, device="tpu").resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert shaped.is_contiguous(memory_format=torch.channels_last)


# ---- classes and words --------------------------------------------------------------------------------------------------------

CLASSES = {
    "dimension": lambda x: x.sum(2),
    "dimension, negative": lambda x: x.softmax(-3),
    "two dimensions": lambda x: x.mean((0, 5)),
    "dimension twice": lambda x: x.sum((0, 0)),
    "select": lambda x: x[3],
    "select, in place": lambda x: x.select(1, 7).zero_(),
    "indices": lambda x: x[0, 0, 0],
    "index tensors": lambda x: x[torch.tensor([0, 1], device=x.device), torch.tensor([0, 1, 2], device=x.device)],
    "index dtype": lambda x: x[torch.tensor([0.5], device=x.device)],
    "mask": lambda x: x[torch.ones(2, 4, dtype=torch.bool, device=x.device)],
    "too many tensors": lambda x: x[(torch.tensor([0], device=x.device),) * 3],
    "shapes": lambda x: x + x.t(),
    "product": lambda x: x @ x,
    "dot": lambda x: torch.dot(x[0], x[:, 0]),
    "cat": lambda x: torch.cat([x, x.t()]),
    "stack": lambda x: torch.stack([x, x.t()]),
    "cast": lambda x: x.int().add_(0.5),
    "integer mean": lambda x: x.int().mean(),
    "division mode": lambda x: torch.div(x, x, rounding_mode="up"),
    "gather": lambda x: torch.gather(x, 0, torch.zeros(1, dtype=torch.int64, device=x.device)),
    "scatter dtype": lambda x: x.scatter(0, torch.zeros(3, 4, dtype=torch.int64, device=x.device), x.double()),
    "topk": lambda x: x.topk(5),
    "no elements": lambda x: x[:0].max(),
    "no elements in a dimension": lambda x: x[:0].argmax(0),
    "item": lambda x: x.item(),
    "truth": lambda x: bool(x),
    "embedding": lambda x: torch.nn.functional.embedding(x, x),
    "loss": lambda x: torch.nn.functional.nll_loss(x, torch.zeros(2, dtype=torch.int64, device=x.device)),
    "norm shape": lambda x: torch.nn.functional.layer_norm(x, (3,)),
    "normal": lambda x: x.normal_(0, -1),
    "uniform": lambda x: x.uniform_(1, 0),
    "dropout": lambda x: torch.nn.functional.dropout(x, 1.5),
    "leaf": lambda x: x.requires_grad_().add_(1),
    "leaf of integers": lambda x: x.int().requires_grad_(),
}


@pytest.mark.parametrize("call", CLASSES.values(), ids=CLASSES.keys())
def test_errors_are_of_pytorchs_class(call):
    with pytest.raises(Exception) as want:
        call(X.clone())
    with pytest.raises(Exception) as got:
        call(X.to("tpu"))
    assert type(got.value) is type(want.value), got.value


# What only the data tells: the program finds it, and whoever waits for the program or reads its results is told. On the CPU the op itself.
FAR_ROW, FAR_PLACES = torch.tensor([7]), torch.full((3, 4), 7)
DATA = {
    "index_select": lambda x, row, places: x.index_select(0, row),
    "x[i]": lambda x, row, places: x[row],
    "x[i] = y": lambda x, row, places: x.index_put((row,), x[0]),
    "take": lambda x, row, places: x.take(row * 3),
    "put": lambda x, row, places: x.put(row * 3, x[0, :1]),
    "embedding": lambda x, row, places: torch.nn.functional.embedding(row, x),
    "index_add": lambda x, row, places: x[0].index_add(0, row, x[0, :1]),
    "index_add of rows": lambda x, row, places: x.index_add(0, row, x[:1]),
    "index_copy": lambda x, row, places: x.index_copy(0, row, x[:1]),
    "index_fill": lambda x, row, places: x.index_fill(0, row, 1.0),
    "target": lambda x, row, places: torch.nn.functional.cross_entropy(x, row.expand(3)),
    "gather": lambda x, row, places: x.gather(0, places),
    "scatter": lambda x, row, places: x.scatter(0, places, x),
    "scatter_add": lambda x, row, places: x.scatter_add(0, places, x),
    "one_hot": lambda x, row, places: torch.nn.functional.one_hot(row, 3),
    "unpooled": lambda x, row, places: torch.nn.functional.max_unpool2d(x[None, None, :2, :2], places[None, None, :2, :2] * 9, 2),
    "repeated": lambda x, row, places: x.repeat_interleave(row.expand(3), 0, output_size=3),
    "masked_scatter": lambda x, row, places: x.masked_scatter(places > 0, x[0]),
    "division": lambda x, row, places: row // (row - 7),
    "probabilities": lambda x, row, places: torch.multinomial(x - 9, 2),
    "targets of a loss": lambda x, row, places: torch.nn.functional.binary_cross_entropy(x + 9, x),
}
READS = {"a wait": lambda y: torch.tpu.synchronize(), "PyTorch's wait": lambda y: torch.accelerator.synchronize(), "a copy": lambda y: y.cpu()}


@pytest.mark.parametrize("call", DATA.values(), ids=DATA.keys())
def test_errors_of_data_are_of_pytorchs_class(call):
    with pytest.raises(Exception) as want:
        call(X.clone(), FAR_ROW, FAR_PLACES)
    there = [t.to("tpu") for t in (X, FAR_ROW, FAR_PLACES)]
    for read in READS.values() if call is DATA["index_select"] else [READS["a wait"]]:
        result = call(*there)
        with pytest.raises(Exception) as got:
            read(result)
        assert type(got.value) is type(want.value), got.value
        torch.tpu.synchronize()  # it was raised once
    with torch.tpu.eager_mode("debug"), pytest.raises(type(want.value)):
        call(*there)


def test_the_first_of_several_errors_of_data_keeps_its_class():
    x, row, places = (t.to("tpu") for t in (X, FAR_ROW, FAR_PLACES))
    x[row], x.gather(0, places)
    with pytest.raises(IndexError, match="and 1 more failure since the last wait"):
        torch.tpu.synchronize()
    x.gather(0, places), x[row]
    with pytest.raises(RuntimeError, match="and 1 more failure since the last wait"):
        torch.tpu.synchronize()


def test_errors_say_the_op_its_arguments_and_the_users_line():
    x = X.to("tpu")
    with pytest.raises(RuntimeError) as error:
        line = inspect.currentframe().f_lineno + 1
        torch.nn.functional.linear(x, x[:, :3], x[0])
    text = str(error.value)
    assert "aten::addmm(self: float32[4], mat1: float32[3, 4], mat2: float32[3, 3]" in text, text
    assert f"test_errors.py:{line}]" in text, text

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g @ g

    with pytest.raises(RuntimeError) as error:
        Backward.apply(x.detach().requires_grad_()).sum().backward()
    assert "aten::mm" in str(error.value) and "test_errors.py:" in str(error.value)
    with torch.tpu.eager_mode("debug"), pytest.raises(IndexError, match="out of range") as error:
        x.index_select(0, torch.tensor([7], device="tpu"))
    assert "aten::index_select" in str(error.value) and "test_errors.py:" in str(error.value)


# ---- which device -------------------------------------------------------------------------------------------------------------

DEVICES = {
    "empty": lambda: torch.empty(3, device="tpu:1"),
    "ones": lambda: torch.ones(3, device="tpu:1"),
    "full": lambda: torch.full((3,), 2.0, device="tpu:1"),
    "arange": lambda: torch.arange(3, device="tpu:1"),
    "rand": lambda: torch.rand(3, device="tpu:1"),
    "eye": lambda: torch.eye(3, device="tpu:1"),
    "tensor": lambda: torch.tensor([1.0], device="tpu:1"),
    "as_tensor": lambda: torch.as_tensor(X, device="tpu:1"),
    "to": lambda: X.to("tpu:1"),
    "to from another": lambda: X.to("tpu").to("tpu:1"),
    "like": lambda: torch.zeros_like(X, device="tpu:1"),
    "new": lambda: X.to("tpu").new_ones(3, device="tpu:1"),
    "method": lambda: X.tpu(1),
    "module": lambda: torch.nn.Linear(2, 2).to("tpu:1"),
    "module made there": lambda: torch.nn.Linear(2, 2, device="tpu:1"),
    "far": lambda: torch.empty(3, device="tpu:7"),
    "set_device": lambda: torch.tpu.set_device(1),
    "set_device by name": lambda: torch.tpu.set_device("tpu:2"),
    "accelerator": lambda: torch.accelerator.set_device_index(1),
    "context": lambda: torch.tpu.device(1).__enter__(),
    "generator": lambda: torch.Generator("tpu:1"),
    "stream": lambda: torch.Stream("tpu:1"),
    "fallback": lambda: torch.ops.aten.normal.float_float(0.0, 1.0, [3], device="tpu:1"),
}


@pytest.mark.parametrize("call", DEVICES.values(), ids=DEVICES.keys())
def test_there_is_one_device(call):
    with pytest.raises(RuntimeError, match="there is 1 tpu device"):
        call()


def test_the_one_device_by_all_of_its_names(monkeypatch):
    for device in ("tpu", "tpu:0", torch.device("tpu"), torch.device("tpu", 0)):
        assert torch.ones(1, device=device).device == torch.device("tpu:0")
        torch.tpu.set_device(device)
    torch.tpu.set_device(0)
    with torch.device("tpu:0"):
        assert torch.ones(1).device.type == "tpu"
    with pytest.raises(RuntimeError, match="there is 1 tpu device"), torch.device("tpu:1"):
        torch.ones(1)
    monkeypatch.setenv("LOCAL_RANK", "3")
    torch.tpu.set_device(3)
    with pytest.raises(RuntimeError, match="there is 1 tpu device"):
        torch.tpu.set_device(2)


# ---- the elements as others would read them -------------------------------------------------------------------------------------

EXPORTS = {
    "numpy": (lambda x: x.numpy(), TypeError, "can't convert tpu:0 device type tensor to numpy. Use Tensor.cpu"),
    "array": (lambda x: __import__("numpy").asarray(x), TypeError, "can't convert tpu:0 device type tensor to numpy"),
    "dlpack": (lambda x: x.__dlpack__(), BufferError, "Use Tensor.cpu"),
    "old dlpack": (lambda x: torch.utils.dlpack.to_dlpack(x), BufferError, "Use Tensor.cpu"),
    "torch.to_dlpack": (lambda x: torch.to_dlpack(x), BufferError, "Use Tensor.cpu"),
    "from_dlpack": (lambda x: torch.from_dlpack(x), BufferError, "Use Tensor.cpu"),
    "numpy's from_dlpack": (lambda x: __import__("numpy").from_dlpack(x), BufferError, "Use Tensor.cpu"),
    "another process": (multiprocessing.reduction.ForkingPickler.dumps, RuntimeError, "Use Tensor.cpu"),
    "CUDA's interface": (lambda x: x.__cuda_array_interface__, AttributeError, "CUDA"),
    "pinned": (lambda x: x.pin_memory(), RuntimeError, "pin"),
}


@pytest.mark.parametrize("call, error, words", EXPORTS.values(), ids=EXPORTS.keys())
def test_elements_are_not_lent(call, error, words):
    x = X.to("tpu")
    with pytest.raises(error, match=words):
        call(x)
    assert torch.equal(x.cpu(), X)


def test_elements_are_exported_from_a_copy():
    import numpy

    x = X.to("tpu")
    capsule = x.__dlpack__(dl_device=(1, 0))
    assert torch.equal(torch.from_dlpack(capsule), X)
    assert torch.equal(torch.from_dlpack(numpy.ones(3), device="tpu").cpu(), torch.ones(3, dtype=torch.float64))
    assert x.__dlpack_device__()[0] == torch.utils.dlpack.DLDeviceType.kDLExtDev
    assert torch.equal(torch.from_dlpack(X), X)  # the CPU's own
    storage = x.untyped_storage()
    assert list(storage)[:8] == list(X.untyped_storage())[:8] and storage.tolist() == X.untyped_storage().tolist()
    assert bytes(storage.cpu().tolist()) == bytes(X.untyped_storage().tolist())


# ---- import torch ---------------------------------------------------------------------------------------------------------------


def python(code, home=None, path=None, **variables):
    environment = {**os.environ, "HOME": str(home or os.environ["HOME"]), **variables}
    if path:
        environment["PYTHONPATH"] = str(path)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)


SAYS = 'import torch; print(torch.ones(2).sum().item(), hasattr(torch, "tpu") and torch.tpu.is_available())'


@pytest.fixture(scope="module")
def package(tmp_path_factory, root):
    """A copy of the package that may be broken; it comes before the real one."""
    folder = tmp_path_factory.mktemp("package")
    shutil.copytree(root / "python" / "flambeau", folder / "flambeau", ignore=shutil.ignore_patterns("*.cc", "__pycache__"))
    return folder


def broken(package, text):
    (extension,) = (package / "flambeau").glob("_C*.so")
    whole = extension.read_bytes()
    extension.unlink()
    if text is not None:
        extension.write_bytes(whole[:5000] if text == "cut" else text.encode())
    return lambda: extension.write_bytes(whole)


@pytest.mark.parametrize("text, options", [("no library at all", ()), ("cut", ("-W", "error")), (None, ())],
                         ids=["not a library", "half of one, warnings are errors", "not built"])
def test_torch_imports_with_a_broken_extension(package, text, options):
    mend = broken(package, text)
    try:
        environment = {**os.environ, "PYTHONPATH": str(package)}
        done = subprocess.run([sys.executable, *options, "-c", SAYS], capture_output=True, text=True, timeout=300, env=environment)
        assert (done.returncode, done.stdout) == (0, "2.0 False\n"), done.stderr
        assert "the tpu device is not available" in done.stderr and "make build" in done.stderr
        if text == "cut":
            done = python("import flambeau; flambeau.capture", path=package)
            assert done.returncode == 1 and "ImportError: flambeau.capture needs the tpu device, which is not available" in done.stderr
    finally:
        mend()


def test_torch_imports_where_the_device_cannot_start(tmp_path):
    cases = [({"FLAMBEAU_PLUGIN": "/nowhere/plugin.so"}, False), ({"FLAMBEAU_PLUGIN": __file__}, False),
             ({"FLAMBEAU_SITE_PACKAGES": str(tmp_path)}, False), ({"HOME": "/nowhere"}, True)]
    done = pythons(*((SAYS + "; print(torch.accelerator.is_available())", variables) for variables, _ in cases))
    for (variables, available), (code, output, errors) in zip(cases, done, strict=True):
        assert (code, output) == (0, f"2.0 {available}\n{available}\n"), (variables, errors)


def test_a_forked_child_has_no_device():
    code = """
import os, torch
assert torch.tpu.is_available()
child = os.fork()
if child == 0:
    os._exit(0 if torch.tpu.is_available() or torch.accelerator.is_available() else 7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
