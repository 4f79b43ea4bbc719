"""Pinned memory and DataLoader with this device as the accelerator."""

import collections

import pytest
import torch
from torch.utils.data import DataLoader, Dataset


class Squares(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return {"x": torch.full((3,), float(i)), "y": i * i}


Pair = collections.namedtuple("Pair", "x y")


def test_pinned_memory():
    x = torch.arange(6.0).reshape(2, 3)
    assert not x.is_pinned()
    pinned = x.pin_memory()
    assert pinned.is_pinned() and pinned[1, 1:].is_pinned() and pinned.pin_memory() is pinned and torch.equal(pinned, x)
    for made in (torch.empty(3, pin_memory=True), torch.zeros(3, pin_memory=True), torch.tensor([1, 2], pin_memory=True),
                 torch.empty_like(x, pin_memory=True)):
        assert made.is_pinned() and made.device.type == "cpu"
    assert torch.empty(0, pin_memory=True).shape == (0,) and x.untyped_storage().pin_memory().is_pinned()
    assert x.t().pin_memory().stride() == x.t().stride()
    assert not x.to("tpu").is_pinned()
    with pytest.raises(RuntimeError, match="cannot pin|dense CPU"):
        x.to("tpu").pin_memory()


def test_asynchronous_copies_hold_what_was_there():
    pinned = torch.ones(1000, pin_memory=True)
    there = pinned.to("tpu", non_blocking=True)
    pinned.zero_()
    assert there.sum().item() == 1000
    back = torch.empty(1000, pin_memory=True)
    back.copy_(there * 2, non_blocking=True)
    torch.accelerator.synchronize()
    assert back.sum().item() == 2000


def test_views_keep_pinned_memory():
    block = torch.arange(1 << 16, pin_memory=True)
    view = block[10:13]
    del block
    torch.accelerator.empty_host_cache()
    assert view.is_pinned() and view.tolist() == [10, 11, 12]


LOADERS = {
    "this process": {},
    "fork": {"num_workers": 2, "multiprocessing_context": "fork"},
    "spawn": {"num_workers": 1, "multiprocessing_context": "spawn", "persistent_workers": True},
}


@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS.keys())
def test_loaders(options):
    torch.ones(2, device="tpu").sum().item()  # the device is in use before the workers start
    loader = DataLoader(Squares(), batch_size=4, pin_memory=True, **options)
    for _ in range(2 if options.get("persistent_workers") else 1):
        seen = []
        for batch in loader:
            assert batch["x"].is_pinned() and batch["y"].is_pinned()
            x, y = (batch[k].to("tpu", non_blocking=True) for k in ("x", "y"))
            assert torch.equal(x.cpu()[:, 0] ** 2, y.cpu().float())
            seen += y.tolist()
        assert seen == [i * i for i in range(10)]


def collate(items):
    return Pair(torch.stack([item["x"] for item in items]), [torch.tensor(item["y"]) for item in items])


def test_structures_are_pinned_inside():
    batch = next(iter(DataLoader(Squares(), batch_size=2, pin_memory=True, collate_fn=collate)))
    assert type(batch) is Pair and batch.x.is_pinned() and all(y.is_pinned() for y in batch.y)
