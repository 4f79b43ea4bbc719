"""Stock and users' optimizers inside of captured functions: their numbers, schedules and states. Reference values are PyTorch's on the CPU."""

import copy

import pytest
import torch
from torch.optim import optimizer as torch_optimizer

import flambeau
from stories import BATCHES, compare, flat, net, settles, step_of
from tensors import same, tpu

sched = torch.optim.lr_scheduler

# ---- numbers of optimizers ------------------------------------------------------------------------------------------------------


def test_the_learning_rate_of_a_schedule_is_not_frozen():
    p = torch.nn.Parameter(torch.ones((), device="tpu"))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scheduler = sched.StepLR(optimizer, step_size=3, gamma=0.1)

    @flambeau.capture
    def step():
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()
        return p

    for _ in range(9):
        step()
        scheduler.step()
    same(p, torch.tensor(-2.33))


SCHEDULES = {
    "StepLR": lambda o: sched.StepLR(o, 3, 0.1),
    "cosine": lambda o: sched.CosineAnnealingLR(o, 10),
    "OneCycle": lambda o: sched.OneCycleLR(o, 0.1, total_steps=14),
    "warm-up": lambda o: sched.LambdaLR(o, lambda i: min(1.0, i / 5)),
    "plateau": lambda o: sched.ReduceLROnPlateau(o, patience=0, threshold=1.0),
}


def scheduled(device, capture, make_optimizer, make_schedule):
    model = net(device)
    optimizer = make_optimizer(model.parameters())
    schedule = make_schedule(optimizer)
    step = capture(step_of(model, optimizer))
    for i in range(13):
        loss = step(BATCHES[i].to(device))
        schedule.step(*([loss.item()] if isinstance(schedule, sched.ReduceLROnPlateau) else []))
        yield flat(model)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("make", [lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), lambda p: torch.optim.AdamW(p, lr=0.05)],
                         ids=["SGD", "AdamW"])
def test_schedules(make, schedule):
    settles(compare(scheduled, make, SCHEDULES[schedule]), after=4)


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "SGD nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=0.05, weight_decay=0.1),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, lr=0.05, amsgrad=True, maximize=True, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.05),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=0.05, fused=True),
    "SGD tensor lr": lambda p: torch.optim.SGD(p, lr=torch.tensor(0.1), momentum=0.9),
    "AdamW tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.05)),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.1),
}
# Their other numbers are constants of the program: changing one compiles.
CAPTURABLE = {
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01, weight_decay=0.01),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01, weight_decay=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01, t0=3),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


def capturable(parameters):
    """By itself; on the CPU PyTorch has no such form."""
    parameters = list(parameters)
    return torch.optim.AdamW(parameters, lr=0.05, capturable=parameters[0].device.type == "tpu")


def edited(device, capture, make):
    """Edits by hand, at calls of all kinds."""
    model = net(device)
    optimizer = make(model.parameters())
    step = capture(step_of(model, optimizer))
    group = optimizer.param_groups[0]
    for i in range(1, 21):
        if i % 3 == 0 or i % 5 == 0 or i % 7 == 0 or i == 20:
            group["lr"] *= 0.9  # a tensor in place
        if i == 9:
            for key, scale in (("momentum", 0.8), ("dampening", 2), ("weight_decay", 3), ("eps", 10)):
                if isinstance(group.get(key), float) and not (group.get("nesterov") and key == "dampening"):
                    group[key] *= scale
            if "betas" in group:
                group["betas"] = (0.8, 0.95)
        step(BATCHES[i].to(device))
        yield flat(model)


EDITED = OPTIMIZERS | {"AdamW capturable": capturable}


@pytest.mark.parametrize("make", EDITED.values(), ids=EDITED.keys())
def test_hand_edits_compile_nothing(make):
    settles(compare(edited, make), after=4)


@pytest.mark.parametrize("name", CAPTURABLE)
def test_hand_edits_of_capturable_optimizers(name):
    record = compare(edited, CAPTURABLE[name])
    assert record[7] == record[3]  # learning rates are inputs
    settles(record, after=10)


def grouped(device, capture):
    """Groups with numbers of their own, decay that comes and goes, a group that joins, two optimizers in one step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
    extra = torch.nn.Linear(4, 1).to(device)
    first = torch.optim.AdamW([{"params": model[0].parameters(), "lr": 0.03}, {"params": [model[2].weight], "weight_decay": 0.0}], lr=0.05)
    second = torch.optim.SGD([model[2].bias], lr=0.1)
    hidden = model[:2]

    @capture
    def step(x):
        first.zero_grad()
        second.zero_grad()
        loss = (model(x) + extra(hidden(x))).square().mean()
        loss.backward()
        first.step()
        second.step()
        return loss

    for i in range(14):
        if i == 4:
            first.param_groups[1]["weight_decay"] = 0.1
        if i == 8:
            first.param_groups[1]["weight_decay"] = 0.0
            second.param_groups[0]["lr"] = 0.01
        if i == 9:
            second.add_param_group({"params": extra.parameters(), "lr": 0.2})
        yield step(BATCHES[i].to(device))
        yield torch.cat([flat(model), flat(extra)])


def test_groups_and_two_optimizers():
    compare(grouped)


def scheduler_inside(device, capture):
    model = net(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = sched.StepLR(optimizer, 2, 0.5)

    @capture
    def step(x):
        step_of(model, optimizer)(x)
        schedule.step()

    for i in range(8):
        step(BATCHES[i].to(device))
        yield flat(model)


@pytest.mark.filterwarnings("ignore:.*recorded at each")
def test_a_scheduler_stepped_inside_is_stepped_at_each_call():
    compare(scheduler_inside)


def numbers_read_by_the_function(device, capture):
    p = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([p], lr=0.1)

    @capture
    def step():
        optimizer.zero_grad()
        p.square().sum().backward()
        with torch.no_grad():
            p.mul_(1 - optimizer.param_groups[0]["lr"])
        optimizer.step()
        return p, optimizer.param_groups[0]["lr"]

    for i in range(8):
        optimizer.param_groups[0]["lr"] = 0.1 if i < 5 else 0.01
        result, lr = step()
        assert lr == optimizer.param_groups[0]["lr"]
        yield result


def test_numbers_that_the_function_reads_itself():
    compare(numbers_read_by_the_function)


# ---- states of optimizers ---------------------------------------------------------------------------------------------------------


def state_of(optimizer):
    return {key: {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in state.items()}
            for key, state in optimizer.state_dict()["state"].items()}  # assert_close() compares shapes and dtypes too


def devices(state_dict):
    return [x.device for state in state_dict["state"].values() for key, x in state.items() if key == "step"]


@pytest.mark.parametrize("name", [*OPTIMIZERS, *CAPTURABLE])
def test_state_dict_is_the_uncaptured_one(name):
    """Keys, shapes, dtypes, devices, values. And a run goes on from a loaded one."""
    make = {**OPTIMIZERS, **CAPTURABLE}[name]
    # Its capturable form computes rho_t, a small difference of large numbers, in float32.
    wider = {"rtol": 1.3e-6, "atol": 1e-4} if name == "RAdam" else {}
    models = {way: net("cpu" if way == "cpu" else "tpu") for way in ("cpu", "eager", "captured")}
    optimizers = {way: make(model.parameters()) for way, model in models.items()}
    steps = {way: step_of(models[way], optimizers[way]) for way in models}
    steps["captured"] = flambeau.capture(steps["captured"])

    def go(batches):
        for x in batches:
            for way, step in steps.items():
                step(x if way == "cpu" else tpu(x))
        want = state_of(optimizers["cpu"])
        for way in ("eager", "captured"):
            torch.testing.assert_close(flat(models[way]), flat(models["cpu"]), **wider)
            torch.testing.assert_close(state_of(optimizers[way]), want, **wider, msg=lambda text, way=way: f"{way}: {text}")
            ours, theirs = (o.state_dict() for o in (optimizers[way], optimizers["eager"]))
            assert ours["param_groups"] == theirs["param_groups"] == optimizers["cpu"].state_dict()["param_groups"]
            assert devices(ours) == devices(theirs)

    go(BATCHES[:6])
    before = {way: copy.deepcopy(optimizer.state_dict()) for way, optimizer in optimizers.items()}
    go(BATCHES[6:8])
    optimizers["captured"].load_state_dict(copy.deepcopy(before["cpu"]))  # from one side to the other; loading does not copy
    optimizers["cpu"].load_state_dict(copy.deepcopy(before["captured"]))
    optimizers["eager"].load_state_dict(before["captured"])
    go(BATCHES[8:13])


def test_flags_and_hooks_are_put_back():
    model = net("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hooks = torch_optimizer._global_optimizer_pre_hooks, torch_optimizer._global_optimizer_post_hooks
    before = [set(vars(optimizer)), {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}, *map(len, hooks)]
    step = flambeau.capture(step_of(model, optimizer))
    for x in BATCHES[:4]:
        step(tpu(x))
    after = [set(vars(optimizer)) - {"_opt_called"}, {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}, *map(len, hooks)]
    assert after == before

    broken = flambeau.capture(lambda: optimizer.step(lambda: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        broken()
    assert [set(vars(optimizer)) - {"_opt_called"}, {k: v for k, v in optimizer.param_groups[0].items() if k != "params"}, *map(len, hooks)] == before


class Lion(torch.optim.Optimizer):
    """An optimizer of a user's: state on the device, numbers of the group."""

    def __init__(self, params, lr=0.01, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["exp_avg"] = torch.zeros_like(p)
                p.add_(torch.sign(state["exp_avg"]), alpha=-group["lr"])
                state["exp_avg"].lerp_(p.grad, 1 - group["beta"])


FACTORS = {"step": 1.0}


class Factored(torch.optim.Optimizer):
    """One that reads more than its defaults: an attribute, a global, a number that some groups have."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.1})
        self.factor = 1.0

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad, alpha=group["lr"] * group.get("extra", 1.0) * self.factor * FACTORS["step"])


def factored(device, capture):
    FACTORS["step"] = 1.0
    model = net(device)
    optimizer = Factored(model.parameters())
    step = capture(step_of(model, optimizer))
    changes = {4: lambda: FACTORS.update(step=2.0), 7: lambda: setattr(optimizer, "factor", 0.5),
               10: lambda: optimizer.param_groups[0].update(extra=3.0)}
    for i in range(1, 13):
        changes.get(i, lambda: None)()
        step(BATCHES[i].to(device))
        yield flat(model)


class Counting(Lion):
    def step(self):
        super().step()
        for state in self.state.values():
            state["step"] = state.get("step", 0) + 1


def test_optimizers_of_users():
    compare(edited, lambda p: Lion(p))
    assert compare(factored)[-1][0] < 12
    with pytest.raises(NotImplementedError, match=r"Counting keeps .*'step'.* on the host"):
        compare(edited, lambda p: Counting(p))
    with pytest.raises(NotImplementedError, match="Adafactor"):
        compare(edited, lambda p: torch.optim.Adafactor(p, lr=0.01))
    model = net("tpu")
    step = flambeau.capture(step_of(model, torch.optim.SGD(model.parameters(), lr=0.01, differentiable=True)))
    with pytest.raises(NotImplementedError, match="SGD with differentiable"):
        step(tpu(BATCHES[0]))
