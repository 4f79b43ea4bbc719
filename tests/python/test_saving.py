"""Tensors, modules and optimizers of the device `tpu` that are saved, loaded, copied, and sent elsewhere."""

import copy
import io
import multiprocessing.reduction
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from tensors import X, same, tpu


def saved_and_loaded(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


# map_location, and where tensors of (cpu, tpu) then are
PLACES = {
    "as they were": (None, "cpu", "tpu"),
    "cpu": ("cpu", "cpu", "cpu"),
    "tpu": ("tpu", "tpu", "tpu"),
    "tpu:0": ("tpu:0", "tpu", "tpu"),
    "torch.device": (torch.device("tpu", 0), "tpu", "tpu"),
    "from tpu": ({"tpu:0": "cpu"}, "cpu", "cpu"),
    "to tpu": ({"cpu": "tpu:0"}, "tpu", "tpu"),
    "a function": (lambda storage, location: storage, "cpu", "cpu"),
}


@pytest.mark.parametrize("weights_only", [True, False])
@pytest.mark.parametrize("place, of_cpu, of_tpu", PLACES.values(), ids=PLACES.keys())
def test_tensors_are_loaded_where_one_asks(place, of_cpu, of_tpu, weights_only):
    for x, device in ((X, of_cpu), (tpu(X), of_tpu)):
        got = saved_and_loaded({"whole": x, "turned": x.t(), "part": [x[1:]]}, map_location=place, weights_only=weights_only)
        for tensor, want in ((got["whole"], X), (got["turned"], X.t()), (got["part"][0], X[1:])):
            assert tensor.device.type == device and tensor.stride() == want.stride() and torch.equal(tensor.cpu(), want)
        got["whole"][1, 0] = 9.0  # they share their storage as before
        assert got["turned"][0, 1] == 9.0 and got["part"][0][0, 0] == 9.0


def test_other_ways_to_save(tmp_path):
    file = tmp_path / "x.pt"
    torch.save(tpu(X), file)
    same(torch.load(file, mmap=True, map_location="tpu"), X)
    torch.save(tpu(X), file, _use_new_zipfile_serialization=False)
    same(torch.load(file), X)
    with pytest.raises(RuntimeError, match="TPU device 1 but torch.tpu.device_count.. is 1"):
        saved_and_loaded(tpu(X), map_location="tpu:1")


COPIES = {"pickle": lambda x: pickle.loads(pickle.dumps(x)), "deepcopy": copy.deepcopy, "saved": lambda x: saved_and_loaded(x, weights_only=False)}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_copies_of_tensors(copied):
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool, torch.complex64):
        x = X.to(dtype)
        got = copied(tpu(x))
        same(got, x)
        assert got.dtype == dtype
    parameter = copied(torch.nn.Parameter(tpu(X)))
    assert type(parameter) is torch.nn.Parameter and parameter.requires_grad and parameter.is_leaf
    conjugates, lefts = [], []
    for x in (X, tpu(X)):
        conjugates.append(copied((x + 1j).conj()))
        whole, part = copied([x, x[1:]])
        part.zero_()
        lefts.append(whole.count_nonzero().item())
    assert lefts == ([12, 12] if copied is COPIES["pickle"] else [4, 4])  # pickle copies each tensor for itself
    same(conjugates[1].resolve_conj(), conjugates[0].resolve_conj())
    assert conjugates[1].is_conj() == conjugates[0].is_conj()
    with pytest.raises(RuntimeError, match="graph leaves|non-leaf"):
        copy.deepcopy(tpu(X).requires_grad_() * 2)


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def trained():
    torch.manual_seed(0)
    model = network().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    optimizer.zero_grad()
    model(X.to(next(model.parameters()).device)).square().sum().backward()
    optimizer.step()


def values(model):
    return {name: value.cpu() for name, value in model.state_dict().items()}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES.keys())
def test_copies_of_modules_and_optimizers_go_on(copied):
    model, optimizer = trained()
    other, others = copied((model, optimizer))
    assert others.param_groups[0]["params"][0] is next(other.parameters()) and next(other.parameters()).device.type == "tpu"
    before = values(model)
    step(other, others)
    torch.testing.assert_close(values(model), before, rtol=0, atol=0)
    step(model, optimizer)
    torch.testing.assert_close(values(other), values(model), rtol=0, atol=0)


def test_states_go_to_the_cpu_and_back():
    model, optimizer = trained()
    states = saved_and_loaded((model.state_dict(), optimizer.state_dict()), map_location="cpu", weights_only=True)
    on_cpu = network()
    on_cpu.load_state_dict(states[0])
    optimizer_on_cpu = torch.optim.AdamW(on_cpu.parameters(), lr=0.1)
    optimizer_on_cpu.load_state_dict(states[1])
    step(model, optimizer)
    step(on_cpu, optimizer_on_cpu)
    torch.testing.assert_close(values(on_cpu), values(model))
    model.load_state_dict(saved_and_loaded(on_cpu.state_dict(), map_location="tpu"))
    optimizer.load_state_dict(optimizer_on_cpu.state_dict())
    assert all(p.device.type == "tpu" for p in model.parameters()) and optimizer.state[model[0].weight]["exp_avg"].device.type == "tpu"
    torch.testing.assert_close(values(model), values(on_cpu), rtol=0, atol=0)
    fresh = torch.nn.Linear(4, 4)
    fresh.load_state_dict(model[0].state_dict(), assign=True)
    assert fresh.weight.device.type == "tpu"


# ---- other processes --------------------------------------------------------------------------------------------------------------


def test_no_memory_is_shared_with_other_processes():
    """share_memory_() does nothing, as PyTorch has it for devices; what would send a tensor is refused."""
    x, model = tpu(X), torch.nn.Linear(4, 4).to("tpu")
    assert x.share_memory_() is x and x.is_shared() and model.share_memory() is model
    queue = torch.multiprocessing.get_context("spawn").SimpleQueue()
    for value in (x, {"x": [x]}, model, torch.nn.Parameter(x)):
        for send in (queue.put, multiprocessing.reduction.ForkingPickler.dumps):
            with pytest.raises(RuntimeError, match="a tpu tensor can't be sent to another process. Use Tensor.cpu"):
                send(value)
    queue.put(x.cpu())
    assert torch.equal(queue.get(), X)


# ---- torch.distributed.checkpoint -------------------------------------------------------------------------------------------------


def staged(*options):
    def save(states, folder):
        response = dcp.async_save(states, checkpoint_id=folder, async_stager=DefaultStager(StagingOptions(*options)))
        response.staging_completion.result()  # from here on the states may change
        return response.upload_completion

    return save


SAVES = {
    "at once": lambda states, folder: dcp.save(states, checkpoint_id=folder),
    "asynchronously": lambda states, folder: dcp.async_save(states, checkpoint_id=folder),
    "staged in pinned memory": staged(True, False, True, True),
    "staged in shared memory": staged(True, True, True, True),
}


@pytest.fixture(params=["no group", "gloo"])
def group(request, tmp_path):
    if request.param == "gloo":
        torch.distributed.init_process_group("cpu:gloo,tpu:gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    if request.param == "gloo":
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # of PyTorch's own, that there is no group
@pytest.mark.parametrize("save", SAVES.values(), ids=SAVES.keys())
def test_distributed_checkpoints(save, group, tmp_path):
    model, optimizer = trained()
    want = values(model)
    states = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
    written = save(states, tmp_path / "checkpoint")
    step(model, optimizer)  # goes on while they are written
    if hasattr(written, "result"):
        written.result()
    other, others = trained()
    step(other, others)
    states = dict(zip(("model", "optimizer"), get_state_dict(other, others)))
    dcp.load(states, checkpoint_id=tmp_path / "checkpoint")
    set_state_dict(other, others, model_state_dict=states["model"], optim_state_dict=states["optimizer"])
    torch.testing.assert_close(values(other), want, rtol=0, atol=0)
    step(other, others)
    torch.testing.assert_close(values(other), values(model), rtol=0, atol=0)
