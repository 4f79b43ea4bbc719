"""Stories of captured functions, which the tests of `flambeau.capture` compare.

A story is a generator that takes a device and a way to capture, and gives tensors as it goes. Told on the CPU without capturing, it says
what must come out of the one told on tpu.
"""

import torch

import flambeau
from flambeau import _C

BATCHES = [torch.sin(torch.arange(12.0) * (i + 1)).reshape(4, 3) for i in range(24)]


def compare(story, *arguments, **options):
    """Tells the story both ways. Gives, by event, how many recordings were made and programs compiled."""
    want = [x.detach().clone() for x in story("cpu", lambda fn: fn, *arguments)]
    captured, record = [], []

    def capture(fn):
        captured.append(flambeau.capture(fn, **options))
        return captured[-1]

    for i, got in enumerate(story("tpu", capture, *arguments)):
        torch.testing.assert_close(got.detach().cpu(), want[i], msg=lambda text: f"event {i}: {text}")
        record.append((sum(step.recorded for step in captured), _C.counters()["programs_compiled"]))
    assert len(record) == len(want)
    return record


def settles(record, after, count=0):
    """From event `after` on, `count` more recordings were made and nothing was compiled."""
    assert record[-1][0] == record[after][0] + count, f"recordings by event: {[runs for runs, _ in record]}"
    assert record[-1][1] == record[after][1], f"programs by event: {[programs for _, programs in record]}"


def net(device):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh()).to(device)


def flat(model):
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


def step_of(model, *optimizers):
    def step(x):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return step


def story_of(body, calls=12):
    """`body(device)` gives a function of no arguments, and what happens before calls, by number."""

    def story(device, capture):
        fn, events = body(device)
        step = capture(fn)
        for i in range(1, calls + 1):
            events.get(i, lambda: None)()
            yield step()

    return story
