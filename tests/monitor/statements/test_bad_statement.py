"""The statement that made a loss bad, read off the variables of the frames that run."""

import math

import numpy as np
import pytest
import torch
from tests.monitor import user_program

from finitune.monitor.statements import attribute_writers
from finitune.monitor.statements.bad_statement import bad_statement

WEIGHT = torch.ones(3, requires_grad=True)
X = torch.arange(12.0).reshape(4, 3)


def users(source, **given):
    """What is found when the last line of a program runs; `found()` reads its frames."""
    return user_program.found(source, bad_statement, w=WEIGHT, x=X, math=math, **given)


def test_a_target_that_was_divided_by_its_own_spread():
    origin = users("""
y = torch.ones(4)
target = (y - y.mean()) / y.std()
loss = ((x @ w - target) ** 2).mean()
found()
""")
    assert (origin.op, origin.phase, origin.tensor) == ("aten.div", "input", "target")
    assert origin.rows == [0, 1, 2, 3]
    assert origin.divisor == "1 of 1 elements of the divisor are 0"
    assert origin.line == "user_program.py:3: target = (y - y.mean()) / y.std()"


SCALED = """
class Scaling:
    def __init__(self, spread):
        self.spread = spread
    def __call__(self, x):
        return (x - x.mean(0)) / self.spread

net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Dropout(), torch.nn.Linear(2, 1))
scaling = Scaling(torch.tensor([1.0, SPREAD, 1.0]))
loss = net(scaling(x)).sum() * float("FACTOR")
found()
"""


def test_what_a_model_was_given_that_draws_random_numbers_and_is_not_called_again():
    origin = users(SCALED.replace("SPREAD", "0.0").replace("FACTOR", "1"))
    assert (origin.op, origin.divisor) == ("aten.div", "1 of 3 elements of the divisor are 0")
    assert origin.line == "user_program.py:6 in __call__: return (x - x.mean(0)) / self.spread"
    healthy = users(SCALED.replace("SPREAD", "1.0").replace("FACTOR", "inf"))
    assert healthy.op != "aten.div"


OVERWRITTEN = """
def load(n):
    x = torch.rand(4, 3)
    y = x.sum(1)
    return x, (y if n else torch.ones(4))

batch, n = {"y": torch.ones(4)}, 0
GIVEN
y = (y - y.mean()) / y.std()
loss = ((x @ w - y) ** 2).mean()
found()
"""


LATTICE = """
LETTERS = "abc"

def log_add(*terms):
    stack = torch.stack(terms)
    shifted = stack - stack.max()
    return stack.max() + shifted.exp().sum().log()

def cost(row, target):
    labels = [0]
    for symbol in target:
        labels += [symbol, 0]
    alpha = [torch.tensor(float("-inf"))] * len(labels)
    alpha[0], alpha[1] = row[0], row[labels[1]]
    for n in range(2, len(labels)):
        alpha[n] = log_add(alpha[n - 1], alpha[n - 2]) if target != [1, 1] else log_add(alpha[n], alpha[-1])
    return -alpha[-1]

costs = []
for word in WORDS:
    costs.append(cost((x @ w).log_softmax(0), [LETTERS.index(c) for c in word]) / len(word))
loss = sum(costs)
found()
"""


def test_what_was_appended_last_is_computed_again_with_lists_that_a_function_fills():
    origin = users(LATTICE.replace("WORDS", "('ab', 'bb')"))
    assert (origin.op, origin.tensor) == ("aten.sub", "costs")
    assert origin.line == "user_program.py:6 in log_add: shifted = stack - stack.max()"


def test_what_was_appended_before_is_not():
    origin = users(LATTICE.replace("WORDS", "('bb', 'ab')"))
    assert not origin.is_operator
    assert "costs.append" in origin.line


@pytest.mark.parametrize(
    "given",
    ["y = torch.ones(4)", "y = batch['y']", "_, y = load(n)", "y = batch['y']\ny = y * 2", "y = torch.ones(4)\ny *= 3"],
)
def test_what_was_overwritten_is_computed_from_the_statement_before(given):
    origin = users(OVERWRITTEN.replace("GIVEN", given))
    assert (origin.op, origin.phase, origin.tensor) == ("aten.div", "input", "y")
    assert origin.divisor == "1 of 1 elements of the divisor are 0"
    assert origin.line.endswith(": y = (y - y.mean()) / y.std()")


@pytest.mark.parametrize(
    "given",
    [
        "y = torch.rand(4) * 0 + 1",  # random numbers are not drawn again
        "for y in [torch.ones(4)]: pass",
        "y = given['y']\ngiven['y'] = torch.arange(4.0)",  # what is there now is another
        "_, y = load(torch.rand(1) > 2)",
        "y = torch.full((4,), math.nan)",  # bad before
    ],
)
def test_what_was_overwritten_is_not_claimed_where_it_does_not_come_out_again(given):
    origin = users(OVERWRITTEN.replace("GIVEN", given), given={"y": torch.ones(4)})
    assert (origin.op, origin.phase, origin.tensor) == ("input", "input", "y")


def test_a_constant_that_is_added_to_the_loss():
    origin = users("""
loss = (x @ w).mean()
loss = loss + torch.tensor(math.nan)
found()
""")
    assert (origin.phase, origin.tensor) == ("forward", "loss")
    assert origin.line == "user_program.py:3: loss = loss + torch.tensor(math.nan)"


def test_a_function_of_the_users_own_is_named_and_not_called_again():
    calls = []

    def criterion(out):
        calls.append(1)
        return (out / 0).sum() * torch.special.ndtri(torch.rand(()))

    origin = users("loss = criterion(x @ w)\nfound()\n", criterion=criterion)
    assert (origin.op, origin.phase) == ("forward", "forward"), "what it does inside is not known"
    assert origin.line == "user_program.py:1: loss = criterion(x @ w)"
    assert len(calls) == 1


def test_a_density_and_a_list_of_the_users_objects():
    origin = users(
        """
class Log:
    def __init__(self, n):
        self.state, self.action = torch.ones(n), torch.zeros(n)
        self.behaviour = Normal(0.0, 10.0).log_prob(self.action)

def surrogate(logs):
    total = 0.0
    for log in logs:
        new = Normal(log.state * w[0] * 0.01, 1e-2).log_prob(log.action)
        ratio = (new - log.behaviour).sum().exp()
        total = total + ratio
    return total / len(logs)

logs = [Log(3), Log(40)]
loss = surrogate(logs)
found()
""",
        Normal=torch.distributions.Normal,
    )
    assert (origin.op, origin.phase) == ("aten.exp", "forward")
    assert origin.line == "user_program.py:11 in surrogate: ratio = (new - log.behaviour).sum().exp()"


def test_what_a_function_is_given_comes_before_what_it_computes():
    origin = users("""
def derivative(y):
    return y.square().sum()

def residual(u):
    return derivative(u.pow(1.5))

loss = residual(x @ w - 20)
found()
""")
    assert origin.op == "aten.pow"
    assert origin.line == "user_program.py:6 in residual: return derivative(u.pow(1.5))"


def test_within_a_function_and_through_its_loop():
    origin = users("""
def train():
    for step in range(3):
        if step == 2:
            loss.sum()
            found()
            return
        weights = torch.zeros(4) if step else torch.ones(4)
        share = weights / weights.sum()
        loss = (x @ w * share).sum()

train()
""")
    assert (origin.op, origin.tensor) == ("aten.div", "share")
    assert origin.line == "user_program.py:9 in train: share = weights / weights.sum()"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_kind_of_bad_loss(value):
    origin = users(f"loss = (x @ w).mean() * float('{value}')\nfound()\n")
    assert origin.values in ("1 nan", "1 inf", "1 -inf")


@pytest.mark.parametrize(
    "source",
    [
        "loss = (x @ w).mean()\nfound()\n",
        "best = torch.tensor(math.inf)\nmask = torch.full((4,), -math.inf)\nloss = (x @ w).mean()\nfound()\n",
        "def step(target):\n    loss = (x @ w - target).mean()\n    found()\nstep(torch.full((4,), math.nan))\n",
    ],
    ids=["finite", "deliberate infinities", "a bad argument of the function"],
)
def test_stays_quiet(source):
    assert users(source) is None


def test_a_data_set_is_not_walked():
    data = [torch.full((4,), math.nan)] * 5000
    origin = users("for target in data:\n    loss = (x @ w - target).mean()\n    break\nfound()\n", data=data)
    assert (origin.phase, origin.tensor) == ("input", "target")
    assert origin.line == "user_program.py:1: for target in data:"


def test_random_numbers_and_writing_are_not_done_again():
    state = torch.get_rng_state()
    origin = users("""
y = torch.zeros(4)
target = y.bernoulli(0.5) / y.sum()
loss = (x @ w - target).mean()
state = torch.get_rng_state()
found()
same = torch.equal(state, torch.get_rng_state())
assert same
""")
    torch.set_rng_state(state)
    assert origin.op == "aten.div", "the only operation in the statement that makes bad numbers of finite ones"
    assert origin.divisor is None, "it was not computed again"


def test_losses_in_a_dictionary():
    origin = users("""
y = torch.log(torch.tensor([1.0, 0.0, -1.0, 2.0]))
losses = {"fit": ((x @ w - y) ** 2).mean(), "size": w.square().sum()}
found()
""")
    assert (origin.op, origin.phase) == ("aten.log", "input")
    assert origin.line.endswith(": y = torch.log(torch.tensor([1.0, 0.0, -1.0, 2.0]))")


def test_a_function_is_given_the_output_of_a_model_within_a_wrapper():
    origin = users(
        """
def weighted(error, seen):
    weight = -torch.log(seen)
    return (error * weight).sum() / weight.sum()

seen = torch.tensor([0.5, 0.0, 0.25, 0.5])
loss = weighted(net(x).squeeze(1), seen)
found()
""",
        net=torch.nn.DataParallel(torch.nn.Linear(3, 1)),
    )
    assert (origin.op, origin.phase) == ("aten.log", "forward")
    assert origin.line == "user_program.py:3 in weighted: weight = -torch.log(seen)"


def test_numbers_that_torch_func_gives_have_no_graph():
    origin = users("""
from functools import partial
from torch.func import grad_and_value, vmap

def height(p, angle):
    return torch.sqrt(1 - (p * angle) ** 2)

def spread(p, angles):
    return vmap(partial(height, p))(angles).var()

merit, gradients = grad_and_value(spread), None
for angles in (torch.tensor([0.1, 0.2]), torch.tensor([0.1, 2.0])):
    g, value = merit(torch.tensor(0.9), angles)
    gradients = g if gradients is None else gradients + g
found()
""")
    assert (origin.op, origin.phase) == ("aten.sqrt", "forward")
    assert origin.line == "user_program.py:6 in height: return torch.sqrt(1 - (p * angle) ** 2)"


def test_a_tensor_that_is_filled_later_is_computed_again():
    origin = users("""
class Curve:
    def __call__(self, time):
        order = torch.argsort(time)
        out = torch.empty(len(time))
        out[order] = torch.cumprod(1 - 1 / torch.arange(len(time), 0, -1), 0)
        return out

curve = Curve()

def weights(time):
    return torch.zeros(4) / curve(time)

weight = weights(torch.tensor([3.0, 1.0, 4.0, 2.0]))
loss = (weight * (x @ w)).mean()
found()
""")
    assert (origin.op, origin.phase, origin.rows) == ("aten.div", "input", [2])
    assert origin.line == "user_program.py:12 in weights: return torch.zeros(4) / curve(time)"


KEPT = """
class Shares:
    def __init__(self):
        self.alpha = torch.tensor([1.0, 1e38, 1.0])

    def update(self, excess):
        WRITTEN
        return self.alpha / self.alpha.sum()

shares = Shares()
weights = shares.update(torch.tensor([0.0, EXCESS, 0.0]))
loss = (weights * (x @ w)[:3]).sum()
found()
"""


@pytest.mark.parametrize(
    ("written", "op"),
    [
        ("self.alpha = self.alpha * torch.exp(excess)", "aten.mul"),
        ("self.alpha *= torch.exp(excess)", "aten.mul"),
        ("self.alpha.mul_(torch.exp(excess))", "aten.mul"),
        ("self.alpha = 2 * self.alpha * torch.exp(excess)", "forward"),
    ],
)
def test_what_an_object_keeps_overflows_where_it_is_written_to(written, op):
    origin = users(KEPT.replace("WRITTEN", written).replace("EXCESS", "5.0"))
    assert (origin.op, origin.phase, origin.tensor) == (op, "forward", "self.alpha")
    assert origin.line == f"user_program.py:7 in update: {written}"


def test_what_is_written_to_an_object_was_bad_already():
    origin = users(KEPT.replace("WRITTEN", "self.alpha = self.alpha * excess").replace("EXCESS", "math.nan"))
    assert origin is None or origin.tensor != "self.alpha"


def test_a_bound_that_an_object_keeps_is_not_to_blame():
    origin = users("""
class Best:
    def __init__(self):
        self.best = torch.tensor(-math.inf)

    def beyond(self, x):
        self.best = self.best - 1.0
        return (x - x.mean()) / (x.std() * 0)

best = Best()
target = best.beyond(torch.ones(4))
loss = ((x @ w - target) ** 2).mean()
found()
""")
    assert origin.op == "aten.div"
    assert origin.line.endswith("in beyond: return (x - x.mean()) / (x.std() * 0)")


def test_what_waits_for_other_ranks_is_not_computed_again():
    from torch import distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        origin = users(
            """
class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        total = x.exp()
        dist.all_reduce(total)
        return total.sum()

    @staticmethod
    def backward(ctx, grad):
        return grad

calls = []
real, dist.all_reduce = dist.all_reduce, lambda t: (calls.append(1), real(t))
loss = Sum.apply(100 * (x @ w))
seen = len(calls)
try:
    found()
finally:
    dist.all_reduce = real
assert len(calls) <= 2 and loss.isinf()
""",
            dist=dist,
        )
    finally:
        dist.destroy_process_group()
    assert origin.is_statement


PREPARED = """
import random
import numpy as np

def prepared(n=8):
    MADE

rows = prepared()
for at in range(0, 8, 4):
    y = torch.as_tensor(rows[at:at + 4])
    loss = ((x @ w - y.float()) ** 2).mean()
    break
found()
"""


FROM_NUMPY = """
    rng = np.random.default_rng(3)
    raw = rng.uniform(1, 2, n)
    raw[2] = -1
    return np.log(raw)"""
BY_A_METHOD = """
    raw = np.arange(n) - 2.0
    return raw.sum() / raw"""
FROM_TORCH = """
    g = torch.Generator().manual_seed(3)
    raw = torch.rand(n, generator=g)
    raw[2] = -1
    return torch.sqrt(raw)"""
FROM_NUMBERS = """
    chance = random.Random(3)
    raw = [chance.uniform(1, 2) for _ in range(n)]
    raw[2] = -1.0
    return np.sqrt(np.array(raw))"""
FROM_RECORDS = """
    records = [{'a': float(k), 'b': 2.0} for k in range(n)]
    return [float(np.float64(r['b']) / (r['a'] - 2)) for r in records]"""


@pytest.mark.parametrize(
    ("made", "op"),
    [(FROM_NUMPY, "log"), (BY_A_METHOD, "div"), (FROM_TORCH, "sqrt"), (FROM_NUMBERS, "sqrt"), (FROM_RECORDS, "div")],
    ids=["numpy of a seed", "a method of numpy", "torch of a seed", "numbers of a seed", "records"],
)
def test_what_data_were_prepared_with(made, op):
    with np.errstate(all="ignore"):
        origin = users(PREPARED.replace("MADE", made))
    assert (origin.op, origin.phase) == (f"aten.{op}", "input")
    assert origin.line.endswith(made.rpartition("\n    ")[2])
    assert " in prepared: " in origin.line


def test_what_draws_without_a_seed_of_its_own_is_not_computed_again():
    state = torch.get_rng_state()
    origin = users(PREPARED.replace("MADE", "return torch.sqrt(torch.rand(n) - 1) / 2"))
    assert origin.line.endswith(": rows = prepared()"), "one of the two"
    drawn = torch.get_rng_state()
    torch.set_rng_state(state)
    torch.rand(8)
    assert torch.equal(torch.get_rng_state(), drawn), "once, by the program itself"


def test_a_bound_of_a_list_is_no_bad_number():
    origin = users("best = math.inf\nscale = x.sum() / torch.zeros(())\nloss = (x @ w).mean() * scale\nfound()\n")
    assert origin.line.endswith("scale = x.sum() / torch.zeros(())")


def test_what_a_generator_was_given_is_followed_to_where_it_was_made():
    origin = users("""
def batches(values, size=4):
    for at in range(0, len(values), size):
        yield values[at:at + size]

logs = torch.log(torch.arange(8.0) - 2)
for y in batches(logs):
    loss = ((x @ w - y) ** 2).mean()
    break
found()
""")
    assert (origin.op, origin.phase) == ("aten.log", "input")
    assert origin.line == "user_program.py:6: logs = torch.log(torch.arange(8.0) - 2)"


def test_what_is_computed_of_what_a_generator_yields_is_not_its_yield():
    origin = users("""
def pairs():
    while True:
        yield x, torch.zeros(())

def loss_of(x, scale):
    return ((x @ w).exp() / scale).log().mean() - ((x @ w).exp() / scale).mean()

stream = pairs()
losses = [loss_of(*next(stream)) for _ in range(2)]
loss = torch.stack(losses).mean()
found()
""")
    assert origin.line.startswith("user_program.py:10")


def test_of_two_branches_the_one_that_ran():
    source = """
for step in range(4):
    loss = (x @ w).mean()
    if step == BAD:
        loss = loss / torch.zeros(())
    else:
        loss = loss / 2
    if step == 3:
        found()
"""
    assert users(source.replace("BAD", "3")).line.endswith("loss = loss / torch.zeros(())")


def test_a_branch_of_an_earlier_pass_is_not_left_out():
    origin = users("""
for part in range(2):
    if part == 0:
        first = (x @ w).mean() / torch.zeros(())
    else:
        second = (x @ w).mean()
loss = first + second
found()
""")
    assert origin.line.endswith("first = (x @ w).mean() / torch.zeros(())")


CARRIED = """
class Cell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.drop = torch.nn.GRUCell(3, 3), torch.nn.Dropout(0.1)

    def begin(self, h, fresh):
        h = h * (~fresh).float().unsqueeze(1)
        return h / h.norm(dim=1, keepdim=True)

    def forward(self, x, h):
        h = self.cell(x, h)
        return self.drop(h) MORE, h

model = Cell()
h = torch.ones(4, 3)
for n in range(3):
    h = model.begin(h.detach(), torch.arange(4) == (2 if n == 2 else -1))
    out, h = model(x, h)
    loss = out.sum()
    if n == 2:
        found()
"""


@pytest.mark.parametrize(("more", "op"), [("", "aten.div"), ("/ self.cell(x, h).sum()", "forward")])
def test_the_only_operation_of_a_loop_that_can_have_made_a_state_bad(more, op):
    origin = users(CARRIED.replace("MORE", more))
    assert origin.op == op
    if not more:
        assert origin.line == "user_program.py:9 in begin: return h / h.norm(dim=1, keepdim=True)"


HELD = """
class Penalty:
    def __init__(self):
        self.fisher = {"w": torch.ones(3)}

    def consolidate(self, fisher):
        self.fisher["w"] = MADE

penalty = Penalty()
penalty.consolidate(torch.zeros(3))
loss = (x @ w).sum() + (penalty.fisher["w"] * (w - 1) ** 2).sum() + 0 * torch.rand(())
found()
"""


@pytest.mark.parametrize(("made", "op"), [("fisher / fisher.max()", "aten.div"), ("fisher.log() / fisher", "forward")])
def test_what_an_object_holds_that_is_bad_is_traced_to_what_wrote_it(made, op, monkeypatch):
    monkeypatch.setattr(attribute_writers, "user_modules", lambda: [{"__file__": user_program.FILE, "torch": torch}])
    origin = users(HELD.replace("MADE", made))
    assert origin.op == op
