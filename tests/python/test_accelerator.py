"""`torch.accelerator` and `torch.tpu`: which device, its stream, its memory, its random numbers."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import flambeau
from tensors import X, same, tpu

ONE_DEVICE = "there is 1 tpu device"


def test_the_accelerator_is_this_device():
    assert torch.accelerator.is_available() and torch.accelerator.device_count() == 1
    assert torch.accelerator.current_accelerator() == torch.device("tpu")
    assert torch.accelerator.current_device_index() == 0 == torch.tpu.current_device()
    for device in (0, "tpu:0", torch.device("tpu", 0)):
        torch.accelerator.set_device_index(device)
        torch.accelerator.synchronize(device)
        torch.tpu.synchronize(device)
    with torch.accelerator.device_index(0):
        same(torch.ones(2, device="tpu"), torch.ones(2))
    with torch.accelerator.device_index(None):
        pass
    with pytest.raises(RuntimeError, match=ONE_DEVICE), torch.accelerator.device_index(1):
        pass


def test_there_is_one_stream():
    stream = torch.accelerator.current_stream()
    assert stream.device == torch.device("tpu:0")
    assert stream == torch.tpu.current_stream() == torch.tpu.default_stream("tpu:0") == torch.tpu.Stream() == torch.Stream("tpu")
    torch.accelerator.set_stream(stream)
    torch.tpu.set_stream(stream)
    for context in (stream, torch.tpu.stream(stream), torch.tpu.stream(None)):
        with context:
            x = tpu(X) + 1
    assert stream.query()
    stream.synchronize()
    x.record_stream(stream)
    with pytest.raises(RuntimeError, match="doesn't support events"):  # not there yet
        torch.Event("tpu").record()


def test_memory_statistics():
    torch.accelerator.reset_accumulated_memory_stats()
    torch.accelerator.reset_peak_memory_stats()
    before = torch.accelerator.memory_stats()
    assert before["allocated_bytes.all.allocated"] == before["allocated_bytes.all.freed"] == before["allocation.all.freed"] == 0
    x, y = (torch.zeros(1000, device="tpu") for _ in range(2))
    del x
    after = torch.accelerator.memory_stats()
    for key, what in (("allocated_bytes", 4000), ("allocation", 1), ("active_bytes", 4000), ("active", 1), ("reserved_bytes", 4000)):
        now, peak, made, freed = (after[f"{key}.all.{name}"] for name in ("current", "peak", "allocated", "freed"))
        assert now == before[f"{key}.all.current"] + what and peak >= now + what and made == 2 * what and freed == what
    assert torch.tpu.memory_stats(0).keys() == after.keys() and min(after.values()) >= 0
    assert torch.accelerator.memory_allocated() == torch.accelerator.memory_reserved() == torch.tpu.memory_allocated() == torch.tpu.memory_reserved()
    assert torch.accelerator.max_memory_allocated() == torch.accelerator.max_memory_reserved() == torch.tpu.max_memory_allocated()
    del y
    torch.tpu.reset_accumulated_memory_stats()
    torch.tpu.reset_peak_memory_stats()
    again = torch.accelerator.memory_stats()
    assert min(again.values()) == 0 and again["allocation.all.freed"] == 0 and again["allocated_bytes.all.peak"] == again["allocated_bytes.all.current"]
    torch.accelerator.empty_cache()
    torch.accelerator.empty_host_cache()
    torch.tpu.empty_cache()
    for free_and_total in (torch.accelerator.get_memory_info, torch.tpu.mem_get_info):
        try:
            free, total = free_and_total()
            assert 0 <= free <= total
        except NotImplementedError as error:
            assert "does not tell how much memory its device has" in str(error)


OTHER_DEVICES = ("synchronize", "get_device_name", "get_device_properties", "current_stream", "get_rng_state", "memory_allocated", "max_memory_allocated",
                 "memory_reserved", "memory_stats", "reset_peak_memory_stats", "reset_accumulated_memory_stats", "mem_get_info", "device", "set_device")


@pytest.mark.parametrize("name", OTHER_DEVICES)
def test_another_device_is_an_error(name):
    for device in (1, "tpu:1", torch.device("tpu", 1)):
        with pytest.raises(RuntimeError, match=ONE_DEVICE):
            getattr(torch.tpu, name)(device)
    with pytest.raises(ValueError, match="expected a tpu device, got cpu"):
        getattr(torch.tpu, name)("cpu")


# ---- random numbers -----------------------------------------------------------------------------------------------------------------


def test_states_of_the_generator():
    (generator,) = torch.tpu.default_generators
    states = torch.tpu.get_rng_state_all()
    drawn = torch.rand(4, device="tpu").cpu()
    torch.tpu.set_rng_state_all(states)
    assert torch.equal(torch.rand(4, device="tpu").cpu(), drawn)
    torch.tpu.manual_seed(5)
    assert torch.tpu.initial_seed() == generator.initial_seed() == 5
    assert torch.tpu.seed() == torch.tpu.initial_seed() != 5
    with torch.random.fork_rng(device_type="tpu"):
        torch.tpu.manual_seed(7)
    assert torch.tpu.initial_seed() != 7


def recomputed(p, reentrant):
    """Twice what a dropout gives, recomputed in the backward pass."""
    drop = torch.nn.Dropout(0.5)
    return checkpoint(lambda x: drop(drop(x) + 1) * 2, p, use_reentrant=reentrant)


@pytest.mark.parametrize("captured", [False, True], ids=["eager", "captured"])
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_dropouts_drop_the_same(reentrant, captured):
    p = torch.ones(64, device="tpu", requires_grad=True)

    def step():
        p.grad = None
        y = recomputed(p, reentrant)
        z = torch.nn.functional.dropout(torch.ones(64, device="tpu"))  # draws after what was recomputed
        y.sum().backward()
        return y, p.grad, z, torch.rand(64, device="tpu")

    run = flambeau.capture(step) if captured else step
    seen = []
    for _ in range(4):
        torch.manual_seed(3)
        y, gradient, *others = (t.detach().cpu() for t in run())
        # Both kept: y = 2 * 2 * (2 * p + 1) = 12 with the gradient 8; the outer one alone: 4 and 0; the inner one alone: 0 and 0.
        assert torch.equal(gradient, torch.where(y == 12, 8.0, 0.0)) and 8 < (y == 12).sum() < 24
        seen.append((y, gradient, *others))
    assert all(torch.equal(a, b) for other in seen[1:] for a, b in zip(seen[0], other))  # of one seed
    assert not torch.equal(run()[0].cpu(), seen[0][0])  # and others follow


def test_what_a_replay_could_not_set_of_the_generator_is_refused():
    torch.ones(1, device="tpu")  # a process that has not used the device runs the first call as it is
    before, states = torch.tpu.get_rng_state(), []
    refused = {
        "seed": lambda: torch.manual_seed(0),
        "an offset": lambda: torch.tpu.default_generators[0].set_offset(8),
        "a state from outside": lambda: torch.tpu.set_rng_state(before),
    }
    for call in refused.values():
        with pytest.raises(NotImplementedError, match="would not be set again by its replays"):
            flambeau.capture(lambda: (call(), torch.rand(3, device="tpu"))[1])()
    flambeau.capture(lambda: (states.append(torch.tpu.get_rng_state()), torch.rand(3, device="tpu"))[1])()
    with pytest.raises(RuntimeError, match="means nothing outside of it"):
        torch.tpu.set_rng_state(states[0])
    assert torch.equal(torch.tpu.get_rng_state()[:8], before[:8])  # the seed
