"""A finite loss whose gradient is not: computed again from the loop's own statements, its backward under watch."""

from __future__ import annotations

import pytest
import torch
from tests.monitor import user_program
from torch import nn

from finitune.monitor.statements.recomputed_loss import bad_backward, bad_forward
from finitune.monitor.user_code.ended_frames import EndedFrame

MODEL = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(2, 2)

    def forward(self, x):
        return x * self.net(x)

torch.manual_seed(0)
model, x = Model(), torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 1.0]])
"""


def origin_in(program):
    seen = []
    return user_program.found(MODEL + program, lambda: bad_backward(seen), nn=nn, seen=seen)


LENGTHS = """
def length(p):
    squares = (p * p).sum(1)
    return torch.sqrt(squares)

p = model(x)
loss = length(p).mean()
seen.append(loss.item())
loss.backward()
found()
"""


def test_the_operator_and_the_statement_within_a_function():
    origin = origin_in(LENGTHS)
    assert (origin.op, origin.phase, origin.divisor) == ("aten.div", "backward", "1 of 3 elements of the divisor are 0")
    assert origin.line == "user_program.py:15 in length: return torch.sqrt(squares)"


@pytest.mark.parametrize("apply", ["Length.apply", "length"])
def test_a_backward_of_the_users_own(apply):
    origin = origin_in(
        """
class Length(torch.autograd.Function):
    @staticmethod
    def forward(ctx, p):
        out = (p * p).sum(1).sqrt()
        ctx.save_for_backward(p, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        p, out = ctx.saved_tensors
        unit = p / out[:, None]
        return gradient[:, None] * unit

length = Length.apply
lengths = APPLY(model(x))
loss = lengths.mean()
seen.append(loss.item())
loss.backward()
found()
""".replace("APPLY", apply)
    )
    assert (origin.op, origin.phase) == ("aten.div", "backward")
    assert origin.line == "user_program.py:23 in backward: unit = p / out[:, None]"


def test_a_value_that_is_chosen_away_in_the_forward():
    origin = origin_in("""
p = model(x).square()
logs = torch.log(p.sum(1) * (x.sum(1) != 0))
loss = torch.where(x.sum(1) == 0, 0.0, logs).mean()
seen.append(loss.item())
loss.backward()
found()
""")
    assert (origin.op, origin.phase) == ("aten.div", "backward")
    assert origin.line.startswith("user_program.py:14: logs = torch.log(")


def test_stays_quiet_where_gradients_are_finite():
    assert origin_in(LENGTHS.replace("(p * p).sum(1)", "(p * p).sum(1) + 1e-6")) is None


def test_stays_quiet_where_a_variable_was_overwritten():
    assert origin_in(LENGTHS.replace("found()", "p = model(x + 1)\nfound()")) is None


def test_stays_quiet_about_another_loss():
    assert origin_in(LENGTHS.replace("loss.item()", "loss.item() + 1")) is None


def test_what_the_model_puts_out_is_taken_as_it_is_where_it_does_more():
    origin = origin_in(
        LENGTHS.replace("p = model(x)", "class Noisy(Model):\n    def forward(self, x):\n        print(end='')\n"
                        "        return super().forward(x)\n\np = Noisy()(x)")
    )  # fmt: skip
    assert (origin.op, origin.phase) == ("aten.div", "backward")


def test_nothing_of_the_users_is_written_to_and_no_hook_is_called():
    held = {}
    source = MODEL + LENGTHS.replace(
        "loss.backward()",
        """
calls = []
p.register_hook(lambda gradient: calls.append(1))
model.net.weight.register_hook(lambda gradient: calls.append(2))
held.update(model=model, calls=calls)
""",
    )
    seen = []
    origin = user_program.found(source, lambda: bad_backward(seen), nn=nn, seen=seen, held=held)
    assert origin.op == "aten.div"
    assert not held["calls"]
    assert all(p.grad is None for p in held["model"].parameters())
    assert torch.is_grad_enabled()


RETURNED = """
class Step:
    def loss(self, x):
        h = model(x)
        squares = (h * h).sum(1)
        return {"loss": torch.sqrt(squares).mean(), "batch": x}
"""


def test_through_a_function_that_has_ended_and_returned_the_loss():
    kept = []

    def seen(loss, step, x):
        function = type(step).loss
        kept.extend([loss, EndedFrame(
            f_code=function.__code__, f_globals=function.__globals__, f_locals={"self": step, "x": x},
            f_lineno=function.__code__.co_firstlineno + 1,
        )])  # fmt: skip

    source = MODEL + RETURNED + "step = Step()\nseen(step.loss(x)['loss'].item(), step, x)\nfound()\n"
    origin = user_program.found(source, lambda: bad_backward(kept[:1], kept[1:]), nn=nn, seen=seen)
    assert (origin.op, origin.phase) == ("aten.div", "backward")
    assert origin.line.endswith('in loss: return {"loss": torch.sqrt(squares).mean(), "batch": x}')


SHIFTED = """
class Step:
    def loss(self, x, hours):
        offset = hours.log()
        out = model(x).sum(1) + offset
        return -out.mean()
"""


def test_an_infinity_that_was_made_before_the_model_was_called_and_is_carried_on():
    kept = []

    def seen(loss, step, x, hours):
        function = type(step).loss
        kept.extend([loss, EndedFrame(
            f_code=function.__code__, f_globals=function.__globals__,
            f_locals={"self": step, "x": x, "hours": hours, "offset": hours.log()},
            f_lineno=function.__code__.co_firstlineno + 2,
        )])  # fmt: skip

    source = (
        MODEL + SHIFTED + "step, hours = Step(), torch.tensor([1.0, 0.0, 2.0])\n"
        "seen(step.loss(x, hours).item(), step, x, hours)\nfound()\n"
    )
    origin = user_program.found(source, lambda: bad_forward(kept[:1], kept[1:]), nn=nn, seen=seen)
    assert (origin.op, origin.tensor, origin.values) == ("aten.log", "offset", "1 -inf")
    assert origin.line == "user_program.py:15 in loss: offset = hours.log()"
