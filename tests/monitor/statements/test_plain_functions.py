"""A function of the user's that is plain arithmetic is computed again from its source, and nothing of it is called."""

from __future__ import annotations

import ast

import pytest
import torch
from tests.monitor import user_program
from torch import nn

from finitune.monitor.origin.operator_watch import OperatorWatch
from finitune.monitor.statements.bad_statement import bad_statement
from finitune.monitor.statements.plain_functions import Evaluation, is_plain_module, is_plain_script
from finitune.monitor.user_code.source_line import user_frames
from finitune.monitor.user_code.torch_arithmetic import NotPlain

WEIGHT = torch.ones(3, requires_grad=True)
X = torch.arange(12.0).reshape(4, 3)


def users(source):
    return user_program.found(source, bad_statement, w=WEIGHT, x=X.clone(), nn=nn)


COUNTS = """
calls = []

def likelihood(x, mean, eps=1e-8):
    calls.append(1)
    ll = x * torch.log(mean + eps)
    ll = ll - torch.lgamma(x + 1)
    return -ll

x[2, 1] = -1
mean = (x.abs() * w).sum(1, keepdim=True)
loss = likelihood(x, mean).mean()
before = len(calls)
found()
assert len(calls) == before
"""


def test_the_statement_within_a_function_is_named():
    origin = users(COUNTS)
    assert (origin.op, origin.phase) == ("aten.lgamma", "forward")
    assert origin.line == "user_program.py:7 in likelihood: ll = ll - torch.lgamma(x + 1)"


def test_a_function_that_does_more_is_not_computed_again():
    origin = users(COUNTS.replace("calls.append(1)", "x = x + torch.rand(()) * 0"))
    assert origin.line == "user_program.py:12: loss = likelihood(x, mean).mean()"
    assert origin.is_statement


MEMBRANE = """
def derivative(u, x):
    return torch.autograd.grad(u.sum(), x, create_graph=True)[0]

def residual(x):
    x = x.requires_grad_()
    r = (x * x).sum(1).sqrt()
    return (derivative((1 - r) * w.sum(), x) + 1).square().mean()

x[2] = 0.0
loss = residual(x.clone())
found()
"""


def test_a_derivative_that_is_part_of_the_loss():
    origin = users(MEMBRANE)
    assert (origin.op, origin.divisor) == ("aten.div", "1 of 4 elements of the divisor are 0")
    assert origin.line == "user_program.py:7 in residual: r = (x * x).sum(1).sqrt()"


def test_a_graph_of_the_users_is_left_alone():
    """A hook on it is called when the program asks for its gradients, and not again."""
    calls = []
    source = MEMBRANE.replace(
        "loss = residual(x.clone())",
        """
at = x.clone().requires_grad_()
u = (at * at).sum(1).sqrt() * w.sum()
u.register_hook(lambda gradient: calls.append(1))
loss = derivative(u, at).square().mean()
""",
    )
    origin = user_program.found(source, bad_statement, w=WEIGHT, x=X.clone(), calls=calls)
    assert origin.is_statement
    assert origin.line.endswith("loss = derivative(u, at).square().mean()")
    assert calls == [1]


def test_nothing_of_the_users_is_made_to_require_a_gradient():
    x = X.clone()
    origin = user_program.found(MEMBRANE.replace("x.clone()", "x.detach()"), bad_statement, w=WEIGHT, x=x)
    assert origin.op == "aten.div"
    assert not x.requires_grad


def test_what_is_not_computed_is_handed_to_nothing_of_the_users():
    calls = []

    class Norm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append(type(x))
            return x / x.norm()

        @staticmethod
        def backward(ctx, gradient):
            return gradient

    source = """
def normed(x):
    noise = torch.rand(3)
    return Norm.apply(noise * x)

def of_noise(x):
    noise = torch.rand(3)
    return Norm.apply(noise)

loss = FUNCTION(x[0] * 0).sum() * w.sum()
found()
"""
    for function in ("normed", "of_noise"):
        before = source.replace("FUNCTION", function).replace("torch.rand(3)", "torch.rand(3) * 0")
        origin = user_program.found(before, bad_statement, w=WEIGHT, x=X.clone(), Norm=Norm)
        assert origin.is_statement
    assert set(calls) == {torch.Tensor}


def test_a_method_a_loop_and_a_choice():
    origin = users("""
class Scales:
    def __init__(self):
        self.size_0, self.size_1, self.smooth = 1, 2, None

    def spread(self, x, size):
        if self.smooth is not None:
            x = x + self.smooth
        with torch.no_grad():
            centre = x[:, :size] - x[:, :size].mean(1, keepdim=True)
        return centre / centre.std(1, keepdim=True)

    def __call__(self, x):
        total = 0.0
        for n in range(2):
            total += self.spread(x, getattr(self, f"size_{n}")).mean()
        return total / 2

criterion = Scales()
loss = criterion(x) * w.sum()
found()
""")
    assert origin.line == "user_program.py:11 in spread: return centre / centre.std(1, keepdim=True)"
    assert origin.op == "aten.std", "of one number"


def test_a_loss_of_torch_within_it():
    origin = users("""
criterion = nn.BCEWithLogitsLoss()

def objective(scores):
    odds = torch.logit(scores)
    return criterion(odds, (odds > 0).float())

loss = objective((x * w).sum(1) / 30)
found()
""")
    assert origin.line == "user_program.py:5 in objective: odds = torch.logit(scores)"


def test_a_target_that_a_network_computes_without_gradients():
    origin = users("""
from collections import namedtuple
Batch = namedtuple("Batch", "state reward legal")

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.5))

    def forward(self, state):
        return self.layers(state)

net = Net().eval()

@torch.no_grad()
def target_of(batch, end=torch.tensor([1.0, 0, 1, 1])):
    best = net(batch.state).masked_fill(~batch.legal, -float("inf")).max(dim=1).values
    parts = [part * 1 for part in (batch.reward, end)]
    return sum(parts) + 0.9 * (1.0 - end) * best

legal = torch.ones(4, 4, dtype=torch.bool)
legal[2] = False
batch = Batch(x, torch.zeros(4), legal)
target = target_of(batch)
loss = ((x * w).sum(1) - target).square().mean()
found()
""")
    assert origin.line == "user_program.py:19 in target_of: return sum(parts) + 0.9 * (1.0 - end) * best"
    assert (origin.op, origin.phase, origin.rows) == ("aten.mul", "input", [2])


@pytest.mark.parametrize(
    "body",
    [
        "path = []\n    for row in x:\n        path.append(row / row.sum())\n    return torch.stack(path)",
        "out = torch.zeros(4, 3)\n    for n in range(4):\n        out[n] = x[n] / x[n].sum()\n    return out",
        "y = x.clone()\n    first = y[2]\n    first.div_(first.sum())\n    return y",
        "parts = {'a': x}\n    parts['b'] = x / x.sum(1, keepdim=True)\n    return parts['b'] + parts['a']",
        "n = 0\n    while 0 <= n < 2 and True:\n        n += 1\n        x = x / x.sum(1, keepdim=True)\n    return x",
        "scale = lambda y, by=1: y / (by * y.sum(1, keepdim=True))\n    return scale(x)",
        "with torch.autocast('cpu'):\n        print('scaled')\n        return x / x.sum(1, keepdim=True)",
        "unused = torch.rand(3)\n    history.append(unused)\n    return x / x.sum(1, keepdim=True)",
        "a, *b = [*x]\n    return x / x.sum(1, keepdim=True)",
        "hot = x.new_zeros(4, 3).scatter_(1, (x[:, :1] * 0).long(), 1.0)\n    return hot * x / x.sum(1, True)",
        "return Pair(x, x.sum(1, keepdim=True)).ratio",
    ],
    ids=["append", "item", "view", "dict", "while", "lambda", "autocast", "unused", "star", "scatter", "property"],
)
def test_what_a_function_makes_by_itself_it_writes_into(body):
    origin = users(f"""
from dataclasses import dataclass

@dataclass
class Pair:
    part: object
    whole: object
    @property
    def ratio(self):
        return self.part / self.whole

history = []
def shares(x):
    {body}

x[2] = 0.0
loss = shares(x).sum() * w.sum()
length = len(history)
found()
assert len(history) == length
""")
    assert origin.op == "aten.div", origin
    assert " in shares: " in origin.line or " in ratio: " in origin.line or "lambda" in origin.line, origin.line


@pytest.mark.parametrize(
    ("module", "plain"),
    [
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval(), True),
        (nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), False),
        (nn.Dropout(), False),
        (nn.LSTM(2, 2), True),
        (nn.LSTM(2, 2, 2, dropout=0.1), False),
        (nn.TransformerEncoderLayer(4, 2), False),
        (nn.CrossEntropyLoss(), True),
    ],
)
def test_modules_of_torch_that_write_nothing(module, plain):
    assert is_plain_module(module) == plain
    module.register_forward_hook(lambda *_: None)
    assert not is_plain_module(module)


@pytest.mark.parametrize(
    "body",
    [
        "return draw(x)", "x.add_(1)\n    return x", "while True:\n        x = x + 1", "return objective(x)",
        "y = x[0]\n    y.mul_(2)\n    return y", "history.append(x)\n    return history[-1]",
        "seen['x'] = x\n    return seen['x']",
        "y = x * 1\n    y.uniform_()\n    return y", "draw(x).sum()\n    y = x + draw(x)\n    return [y, x]",
        "for _ in range(10**9):\n        x = x * 1\n    return x", "return {each for each in x}",
        "global y\n    return x", "return (lambda: draw(x))()", "x[0] = 1\n    return x",
        "try:\n        return x\n    finally:\n        pass",
    ],
)  # fmt: skip
def test_what_is_not_plain_is_refused(body):
    source = f"""
def objective(x):
    {body}

def draw(x):
    return x * torch.rand(3)

history, seen = [], {{}}
found()
assert not history and not seen
"""
    before = X.clone()

    def look():
        names = next(user_frames()).f_globals
        with pytest.raises(NotPlain):
            Evaluation(lambda: False).value(ast.parse("objective(x)", mode="eval").body, names)

    user_program.found(source, look, x=before)
    assert torch.equal(X, before)


def test_the_look_at_what_a_model_was_given_is_no_operator_of_the_step():
    given = {"model": nn.Dropout(), "mask": torch.full((3, 3), -torch.inf).triu(1)}
    with OperatorWatch.of_arithmetic() as watch, pytest.raises(NotPlain):
        Evaluation(lambda: False).value(ast.parse("model(mask)", mode="eval").body, given)
    assert watch.found(bad_loss=True) is None


@torch.jit.script
def dice(p: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return 1.0 - (2.0 * (p * t).sum() / (p.sum() + t.sum()))


@torch.jit.script
def doubled(p: torch.Tensor) -> torch.Tensor:
    p.mul_(2.0)
    return p


@torch.jit.script
def noisy(p: torch.Tensor) -> torch.Tensor:
    return p + torch.rand_like(p)


@pytest.mark.parametrize(("scripted", "plain"), [(dice, True), (doubled, False), (noisy, False)])
def test_what_is_torchscript(scripted, plain):
    assert is_plain_script(scripted) == plain


def test_the_operator_within_torchscript():
    line = "loss = dice(net(x) * w.sum() * 0, x[:, :2] * 0)"
    scripted = torch.jit.script(nn.Sequential(nn.Linear(3, 2), nn.ReLU()))
    given = {"w": WEIGHT, "x": X, "dice": dice, "net": scripted}
    origin = user_program.found(f"{line}\nfound()\n", bad_statement, **given)
    assert (origin.op, origin.line) == ("aten.div", f"user_program.py:1: {line}")


RUNNING = """
class Balanced:
    def __init__(self):
        self.freq, self.momentum, self.seen = torch.full((3,), 1 / 3), 0.5, {{"a": torch.ones(())}}

    def update(self, counts):
        {update}

    def __call__(self, x, counts):
        self.update(counts)
        weight = 1 / self.freq
        for name, value in self.seen.items():
            x = x * value
        return ((x * w).sum(0) * weight).mean()

criterion = Balanced()
loss = criterion(x, torch.zeros(3))
found()
"""


@pytest.mark.parametrize(
    ("update", "operator"),
    [
        ("self.freq = self.momentum * self.freq + (1 - self.momentum) * counts / counts.sum()", "aten.div"),
        ("self.freq += counts / counts.sum()", "aten.div"),
        ("self.freq.mul_(0.5).add_(counts / counts.sum(), alpha=0.5)", "aten.div"),
    ],
    ids=["assigned", "added", "in-place"],
)
def test_what_an_object_keeps_is_followed_to_what_spoilt_it(update, operator):
    origin = users(RUNNING.format(update=update))
    assert origin.op == operator
    assert origin.line == f"user_program.py:7 in update: {update}"


def test_what_an_object_keeps_finite_is_passed_on():
    origin = users(RUNNING.format(update="self.freq = 0 * counts"))
    assert origin.line.endswith("in __call__: weight = 1 / self.freq")


FIELD = """
from torch.func import functional_call, grad, jacrev, vmap

calls = []
net = nn.Linear(3, 1)
weights = dict(net.named_parameters())

class Length(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net
    def forward(self, p):
        length = torch.sqrt((p * p).sum(-1, keepdim=True))
        return self.net(length * p).squeeze(-1)

model = Length()

def energy_of(p):
    return functional_call(model, weights_of_model, (p,))

def field(p):
    {more}
    def energy(p1):
        return functional_call(model, weights_of_model, (p1,))
    return vmap({transform}(energy))(p)

weights_of_model = {{"net." + name: w for name, w in weights.items()}}
made = vmap({transform}(energy_of))
x[2] = 0.0
loss = {loss}.square().mean()
before = dict(net.named_parameters())
found()
assert all(before[name] is p for name, p in net.named_parameters())
"""


@pytest.mark.parametrize("transform", ["grad", "jacrev"])
@pytest.mark.parametrize("loss", ["field(x)", "made(x)"])
def test_what_a_transform_has_made_of_a_function(loss, transform):
    """A gradient within the loss, by torch.func: the root of 0 has none."""
    origin = users(FIELD.format(more="pass", transform=transform, loss=loss))
    assert (origin.op, origin.divisor) == ("aten.div", "1 of 4 elements of the divisor are 0")
    assert "torch.sqrt((p * p).sum(-1, keepdim=True))" in origin.line or loss in origin.line or "vmap(" in origin.line


def test_a_transform_of_a_function_that_does_more_is_not_called():
    origin = users(FIELD.format(more="p = p + torch.rand(()) * 0", transform="grad", loss="field(x)"))
    assert origin.is_statement


ENDS = """
def ends(p):
    return torch.sqrt(p).sum()

slope = torch.func.grad(ends)
loss = (slope(x) * w).mean()
found()
"""


def test_what_a_transform_has_made_is_not_taken_for_the_function_itself():
    """The root of 0 is finite; its derivative, which is what the loss is made of, is not."""
    origin = users(ENDS)
    assert (origin.op, origin.values) == ("aten.div", "1 inf")


STACKED = """
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(2))
        self.settings = object()

    def density(self, x):
        settings, rows = self.settings, len(x)
        total = torch.zeros(rows)
        for layer in self.layers:
            x = layer(x)
            total = total + x.sum(1)
        return total

net = Net()
season = torch.tensor([0, 0, 1, 1])
def worst(density, season):
    return torch.stack([-density[season == k].mean() for k in range(3)]).sum()
loss = worst(net.density(x), season)
found()
"""


def test_modules_in_a_list_and_pairs_of_which_one_is_not_plain():
    origin = user_program.found(STACKED, bad_statement, x=torch.ones(4, 3))
    assert (origin.op, origin.phase) == ("aten.mean", "forward")
    assert origin.line.endswith("in worst: return torch.stack([-density[season == k].mean() for k in range(3)]).sum()")


TOWER = """
class Block(torch.nn.Module):
    def __init__(self, gain):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor(gain, dtype=torch.float16))

    def forward(self, x):
        return x + self.gain * x

class Tower(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block(gain) for gain in (1.0, 6e4, 1.0))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x

tower = Tower()
loss = tower(x).mean()
found()
"""


def test_the_module_whose_forward_makes_it_bad_where_several_are_of_its_class():
    origin = user_program.found(TOWER, bad_statement, x=torch.full((4, 3), 30.0, dtype=torch.float16))
    assert (origin.op, origin.module) == ("aten.mul", "blocks.1")
    assert origin.line.endswith("in forward: return x + self.gain * x")


TWICE_DERIVED = """
w = torch.ones(2, requires_grad=True)
def energy(p):
    speed = (p * w).pow(2).sum(-1).sqrt()
    return speed.sum()
def field(p):
    p = p.requires_grad_()
    (dp,) = torch.autograd.grad(energy(p), (p,), create_graph=True)
    return dp
loss = field(torch.zeros(3, 2)).pow(2).mean()
found()
"""


def test_the_line_of_an_operator_of_a_second_backward_is_that_of_the_forward():
    origin = user_program.found(TWICE_DERIVED, bad_statement)
    assert origin.line.endswith("in energy: speed = (p * w).pow(2).sum(-1).sqrt()")
