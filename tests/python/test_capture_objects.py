"""What a captured function reads by way of hooks, containers, classes and objects: a change makes a new recording."""

import collections
import functools
import types
import weakref

import pytest
import torch

from stories import compare, story_of
from tensors import X

TABLE = {"scale": 1.0}


class Config:
    scale = 1.0


# ---- hooks -------------------------------------------------------------------------------------------------------------------------


class Factor:
    """What a hook closes over, or calls."""

    def __init__(self):
        self.value = 2.0

    def __call__(self, *arguments):
        return arguments[-1] * self.value

    def change(self):
        self.value = 3.0


def gradient_of_ones(device, register):
    """The gradient of a parameter, whose hooks `register` makes, beside what happens before the sixth call."""
    p = torch.nn.Parameter(torch.ones(3, device=device))
    change = register(p)

    def step():
        p.grad = None
        (p * 1).sum().backward()
        return p.grad

    return step, {6: change}


def tensor_hook(device):
    factor = Factor()
    return gradient_of_ones(device, lambda p: p.register_hook(lambda g: g * factor.value) and factor.change)


def another_tensor_hook(device):
    def register(p):
        handle = p.register_hook(lambda g: g * 2)

        def change():
            handle.remove()
            p.register_hook(lambda g: g * 3)

        return change

    return gradient_of_ones(device, register)


def accumulated_hook(device):
    factor = Factor()

    def multiply(p):
        p.grad.mul_(factor.value)

    return gradient_of_ones(device, lambda p: p.register_post_accumulate_grad_hook(multiply) and factor.change)


def module_hooks(register):
    def body(device):
        model, factor, x = torch.nn.Linear(4, 3).to(device), Factor(), X.to(device).clone().requires_grad_()
        with torch.no_grad():
            model.weight.copy_(torch.eye(3, 4))
            model.bias.zero_()
        handle = register(model, factor)

        def step():
            x.grad = None
            y = model(x)
            y.sum().backward()
            return torch.cat([x.grad.flatten(), y.flatten()])

        return step, {5: factor.change, 8: handle.remove}

    return body


HOOKS = {
    "forward": module_hooks(lambda m, factor: m.register_forward_hook(factor)),
    "forward, of a closure": module_hooks(lambda m, factor: m.register_forward_hook(lambda m, i, o: o * factor.value)),
    "before forward": module_hooks(lambda m, factor: m.register_forward_pre_hook(lambda m, i: (factor(i[0]),))),
    "backward": module_hooks(lambda m, factor: m.register_full_backward_hook(lambda m, i, o: (factor(i[0]),))),
    "of all modules": module_hooks(lambda m, factor: torch.nn.modules.module.register_module_forward_hook(factor)),
    "tensor": tensor_hook,
    "another tensor hook": another_tensor_hook,
    "accumulated": accumulated_hook,
}


def optimizer_hook(device):
    factor = Factor()
    p = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer = torch.optim.SGD([p], lr=0.1)

    def multiply(*of_step):
        p.grad.mul_(factor.value)

    optimizer.register_step_pre_hook(multiply)

    def step():
        p.grad = torch.ones_like(p)
        optimizer.step()
        return p

    return step, {6: factor.change}


# ---- containers --------------------------------------------------------------------------------------------------------------------


class Items(list):
    def __len__(self):  # its own, which says nothing of what it holds
        return 1

    def __iter__(self):
        return iter(())


class Table(dict):
    factor = 1.0

    def scaled(self, key):
        return self[key] * self.factor


class Line(collections.namedtuple("Line", "slope offset")):
    def at(self, x):
        return x * self.slope + TABLE["scale"]


class Recent(collections.deque):
    pass


class Meta(type):
    scale = 1.0

    def scaled(cls, x):
        return x * cls.scale


class Made(metaclass=Meta):
    pass


def product(x, configs):
    for config in configs:
        x = x * config.scale
    return x


def elements(make):
    """A container of one object, an attribute of which changes."""

    def body(device):
        x, config = X.to(device), Config()
        configs = make(config)
        return (lambda: product(x, configs)), {5: lambda: setattr(config, "scale", 2.0)}

    return body


def entry(table, key="k", value=2.0):
    """A container that is read at `key`, which changes."""

    def body(device):
        x, held = X.to(device), table()
        return (lambda: x * held[key]), {5: lambda: held.__setitem__(key, value)}

    return body


def reordered(device):
    x, table = X.to(device), collections.OrderedDict(a=2.0, b=3.0)

    def step():
        y = x
        for value in table.values():
            y = y * value + 1
        return y

    return step, {5: lambda: table.move_to_end("a")}


def own_list(device):
    x, items = X.to(device), Items([1.0, 2.0])
    return (lambda: x * list.__getitem__(items, 1) + list.__len__(items)), {4: lambda: list.append(items, 5.0),
                                                                           7: lambda: items.__setitem__(1, 3.0)}


def own_dict(device):
    x, table = X.to(device), Table(k=1.0)

    def reset():
        Table.factor = 1.0

    return (lambda: x * table.scaled("k") + getattr(table, "offset", 0.0)), {
        1: reset, 4: lambda: setattr(Table, "factor", 2.0), 7: lambda: setattr(table, "offset", 1.0)}


def own_tuple(device):
    x, line = X.to(device), Line(2.0, 1.0)

    def reset():
        TABLE["scale"] = 1.0

    return (lambda: line.at(x)), {1: reset, 5: lambda: TABLE.update(scale=2.0), 8: reset}


def set_of_numbers(device):
    x, chosen = X.to(device), {1}
    return (lambda: x * (2 if 2 in chosen else 1)), {5: lambda: chosen.add(2)}


def read_only(device):
    table = {"k": 1.0}
    x, shown = X.to(device), types.MappingProxyType(table)
    return (lambda: x * shown["k"]), {5: lambda: table.update(k=2.0)}


CONTAINERS = {
    "set": elements(lambda c: {c}),
    "frozenset": elements(lambda c: frozenset([c])),
    "keys of a dict": elements(lambda c: {c: None}),
    "deque": elements(lambda c: collections.deque([c])),
    "deque of a user": elements(lambda c: Recent([c])),
    "set of numbers": set_of_numbers,
    "defaultdict": entry(lambda: collections.defaultdict(float, k=1.0)),
    "UserDict": entry(lambda: collections.UserDict(k=1.0)),
    "ChainMap": entry(lambda: collections.ChainMap({"k": 1.0})),
    "deque of numbers": entry(lambda: Recent([1.0]), 0),
    "read only": read_only,
    "order": reordered,
    "list of a user": own_list,
    "dict of a user": own_dict,
    "tuple of a user": own_tuple,
}

# ---- functions, classes and objects -----------------------------------------------------------------------------------------------


class Scaled(torch.autograd.Function):
    factor = 2.0

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = TABLE["scale"]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.scale * Scaled.factor


def autograd_function(device):
    p = torch.nn.Parameter(torch.ones(3, device=device))

    def reset():
        TABLE["scale"], Scaled.factor = 1.0, 2.0

    return (lambda: torch.autograd.grad(Scaled.apply(p).sum(), p)[0]), {
        1: reset, 4: lambda: TABLE.update(scale=2.0), 7: lambda: setattr(Scaled, "factor", 3.0), 9: reset}


def metaclass(device):
    x = X.to(device)
    return (lambda: Made.scaled(x)), {1: lambda: setattr(Meta, "scale", 1.0), 5: lambda: setattr(Meta, "scale", 2.0)}


def replaced_methods(device):
    x, config = X.to(device), Config()
    Config.of_class, Config.static = classmethod(lambda cls: 1.0), staticmethod(lambda: 1.0)
    return (lambda: x * config.of_class() + config.static()), {4: lambda: setattr(Config, "of_class", classmethod(lambda cls: 2.0)),
                                                               7: lambda: setattr(Config, "static", staticmethod(lambda: 3.0))}


def new_attributes(device):
    """Of a class, a function, a parameter."""
    p, config = torch.nn.Parameter(X.to(device)), Config()

    def scale(x):
        return x * getattr(scale, "by", 1.0) * getattr(config, "more", 1.0) * getattr(p, "own", 1.0)

    def reset():
        if hasattr(Config, "more"):
            del Config.more

    return (lambda: scale(p.detach())), {1: reset, 4: lambda: setattr(scale, "by", 2.0), 7: lambda: setattr(Config, "more", 3.0),
                                         10: lambda: setattr(p, "own", 4.0), 12: reset}


def bound_methods(device):
    x, table = X.to(device), {"k": 1.0}
    get = table.get
    return (lambda: x * get("k")), {5: lambda: table.update(k=2.0)}


def cached_property(device):
    class Cached:
        @functools.cached_property
        def scale(self):
            return TABLE["scale"]

    x, cached = X.to(device), Cached()

    def change():
        TABLE["scale"] = 2.0
        del cached.scale

    return (lambda: x * cached.scale), {1: lambda: TABLE.update(scale=1.0), 5: change, 8: lambda: TABLE.update(scale=1.0)}


def weak(device):
    x, config = X.to(device), Config()
    reference, kept = weakref.ref(config), [config]
    return (lambda: x * reference().scale), {5: lambda: setattr(kept[0], "scale", 2.0)}


def loss_scale(device):
    p = torch.nn.Parameter(torch.ones(3, device=device))
    optimizer, scaler = torch.optim.SGD([p], lr=0.1), torch.amp.GradScaler(device, init_scale=4.0, growth_interval=1)

    def step():
        optimizer.zero_grad()
        scaler.scale(p.sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        return scaler._scale + p.sum()

    return step, {6: lambda: scaler.set_growth_interval(2), 10: lambda: scaler.set_growth_factor(4.0)}


def distribution(device):
    x = X.to(device)
    normal = torch.distributions.Normal(torch.zeros((), device=device), 1.0, validate_args=False)
    return (lambda: normal.log_prob(x)), {4: lambda: setattr(normal, "loc", normal.loc + 1), 8: lambda: setattr(normal, "scale", normal.scale * 2)}


OBJECTS = {f.__name__: f for f in (loss_scale, distribution, optimizer_hook, autograd_function, metaclass, replaced_methods, new_attributes, bound_methods, cached_property, weak)}


ROWS = HOOKS | CONTAINERS | OBJECTS


@pytest.mark.parametrize("body", ROWS.values(), ids=ROWS.keys())
def test_what_is_followed(body):
    assert compare(story_of(body))[-1][0] < 12  # some calls were replays
