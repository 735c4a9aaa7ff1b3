"""What a loop writes into finite gradients is found on copies of them, whatever way it is written."""

from __future__ import annotations

import pytest
import torch
from tests.monitor import user_program
from torch import nn

from finitune.monitor.statements.gradient_edits import bad_edit

PROGRAM = """
{defined}
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
calls = []

def update(model, opt):
{edit}
    left.extend((p, g) for p, g in zip(model.parameters(), kept))
    found()

def fit(x):
    loss = (model(x) * 0).sum()
    loss.backward()
    kept.extend(p.grad.clone() for p in model.parameters())
    update(model, torch.optim.SGD(model.parameters(), lr=0.1))

fit(torch.ones(4, 2))
"""
IN_LINE = """
    total = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
    for p in model.parameters():
        p.grad.mul_(0.1 / total)
"""
ASSIGNED = """
    norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    for name, p in model.named_parameters():
        if p.grad is None:
            continue
        p.grad = p.grad / sum(norms)
"""
AUGMENTED = """
    for group in opt.param_groups:
        for p in group["params"]:
            p.grad /= p.grad.norm()
"""
FLAT = """
    flat = torch.cat([p.grad.flatten() for g in opt.param_groups for p in g["params"]])
    flat = flat / flat.norm()
    at = 0
    for p in model.parameters():
        p.grad.copy_(flat[at:at + p.numel()].view_as(p))
        at += p.numel()
"""
FOREACH = """
    grads = [p.grad for p in model.parameters()]
    norm = torch.stack([g.norm() for g in grads]).norm()
    torch._foreach_div_(grads, norm)
"""
NAMES = """
    with torch.no_grad():
        total = torch.zeros(())
        for p in model.parameters():
            total.add_((p.grad * p.grad).sum())
        for p in model.parameters():
            g = p.grad.data
            g /= total
"""
CALLED = """
    rescale(model.parameters())
"""
RESCALE = """
@torch.no_grad()
def rescale(parameters, length=1.0):
    {more}
    grads = [p.grad for p in parameters]
    total = torch.zeros(())
    for g in grads:
        total += (g * g).sum()
    factor = length / total.sqrt()
    for g in grads:
        g.mul_(factor)
"""


def origin_in(edit, defined=""):
    left, kept = [], []
    program = PROGRAM.format(edit=edit.strip("\n"), defined=defined)
    return user_program.found(program, lambda: (bad_edit(left), left), nn=nn, left=left, kept=kept)


@pytest.mark.parametrize(
    ("edit", "operators", "line"),
    [
        (IN_LINE, ("aten.reciprocal", "aten.div"), "p.grad.mul_(0.1 / total)"),
        (ASSIGNED, ("aten.div",), "p.grad = p.grad / sum(norms)"),
        (AUGMENTED, ("aten.div",), "p.grad /= p.grad.norm()"),
        (FLAT, ("aten.div",), "flat = flat / flat.norm()"),
        (FOREACH, ("backward",), "torch._foreach_div_(grads, norm)"),
        (NAMES, ("aten.div",), "g /= total"),
    ],
    ids=["in-line", "assigned", "augmented", "flat", "foreach", "names"],
)
def test_the_operator_and_its_line(edit, operators, line):
    origin, left = origin_in(edit)
    assert origin.op in operators
    assert (origin.phase, origin.module) == ("backward", None)
    assert origin.line.endswith(f"in update: {line}")
    assert not all(p.grad.isfinite().all() for p, _ in left)  # those of the run are as the loop left them
    assert all(g.isfinite().all() for _, g in left)


def test_a_function_of_the_users():
    origin, _ = origin_in(CALLED, RESCALE.format(more="pass"))
    assert origin.op in ("aten.reciprocal", "aten.div")
    assert origin.line.endswith("in rescale: factor = length / total.sqrt()")


def test_a_function_that_does_more_is_not_called_and_the_statement_named():
    origin, _ = origin_in(CALLED, RESCALE.format(more="calls.append(1)"))
    assert (origin.op, origin.phase) == ("backward", "backward")
    assert origin.line.endswith("in update: rescale(model.parameters())")


@pytest.mark.parametrize("value", ["float('nan')", "float('inf')", "-float('inf')"])
def test_what_was_bad_already_is_named_where_it_meets_a_gradient(value):
    defined = f"spoilt = [torch.tensor({value})] * 4\n"
    edit = "    for p, k in zip(model.parameters(), spoilt):\n        factor = 2.0\n        p.grad.add_(factor * k)\n"
    origin, _ = origin_in(edit, defined)
    assert (origin.op, origin.phase) == ("backward", "backward")
    assert origin.line.endswith("in update: p.grad.add_(factor * k)")


def test_what_a_rank_gives_to_the_others():
    shared = FLAT.replace("    at = 0\n", "    shared(flat)\n    at = 0\n")
    defined = "import torch.distributed as dist\n\ndef shared(flat):\n    dist.all_reduce(flat) if calls else None\n"
    origin, _ = origin_in(shared.replace("shared(flat)", "dist.all_reduce(flat) if calls else flat"), defined)
    assert origin is not None
    assert origin.line.endswith("in update: flat = flat / flat.norm()")


def test_a_statement_that_can_no_longer_be_computed_hides_no_other():
    emptied = "    calls.append(1)\n    share = 1 / len(calls)\n    calls.clear()\n"
    origin, _ = origin_in(emptied + AUGMENTED)
    assert origin.line.endswith("p.grad /= p.grad.norm()")


def test_where_no_frame_ran_the_backward_nothing_is_said():
    left = [(p, torch.zeros_like(p)) for p in nn.Linear(2, 2).parameters()]
    assert user_program.found("found()", lambda: bad_edit(left)) is None


CLOSED_FORM = """
w = torch.nn.Parameter(torch.ones(2))
left.append((w, None))

def update():
{written}
    found()

for weights in (torch.tensor([1.0, 2.0]), torch.zeros(2)):
    shares = weights / 1.0
    metric = torch.log(weights.sum() - 4.0)
    if weights.sum() == 0:
        update()
"""


@pytest.mark.parametrize(
    "written",
    ["    w.grad = shares / shares.sum()", "    share = shares / shares.sum()\n    w.grad = share * 2"],
)
def test_a_derivative_in_closed_form_where_there_is_no_backward(written):
    """What the loop prints beside it is bad too, and is not what went into the gradient."""
    left = []
    found = user_program.found(CLOSED_FORM.format(written=written), lambda: bad_edit(left), left=left)
    assert (found.op, found.phase) == ("aten.div", "backward")
    assert found.line.endswith("shares / shares.sum()")


ASKED = """
w = torch.nn.Parameter(torch.ones(2))
left.append((w, None))

def weight_of(one, other):
    difference = one - other
    return torch.dot(difference, other) / torch.dot(difference, difference)

def update(x):
    per_task = {{}}
    for name, loss in {{"a": (w * x).square().sum(), "b": (w * x).sum()}}.items():
        per_task[name] = torch.autograd.grad(loss, w)[0] * {spoilt}
    share = weight_of(per_task["a"], per_task["b"])
    w.grad = share * per_task["a"] + (1 - share) * per_task["b"]
    if w.grad.isnan().any():
        found()

for x in (torch.tensor([1.0, 2.0]), torch.zeros(2)):
    update(x)
"""


def test_what_is_made_of_gradients_that_the_loop_asked_for():
    left = []
    program = ASKED.format(spoilt="1.0")
    found = user_program.found(program, lambda: bad_edit(left, asked=True), left=left)
    assert (found.op, found.divisor) == ("aten.div", "1 of 1 elements of the divisor are 0")
    assert found.line.endswith("in weight_of: return torch.dot(difference, other) / torch.dot(difference, difference)")


@pytest.mark.parametrize("spoilt", ["float('nan')", "float('inf')", "float('-inf')"])
def test_gradients_that_were_bad_when_they_came_are_not_blamed_on_what_is_made_of_them(spoilt):
    left = []
    found = user_program.found(ASKED.format(spoilt=spoilt), lambda: bad_edit(left, asked=True), left=left)
    assert found is None


HOOK = "hook"  # this file, which runs as well, does not speak of setting one
PROJECTED = """
import random
random.seed(0)
w = torch.ones(2, requires_grad=True)

def flat(loss):
    return torch.autograd.grad(loss, [w], retain_graph={kept})[0].flatten()

def project(gradients):
    units = []
    for g in gradients:
        units.append(g / g.norm())
    order = list(range(len(units)))
    random.shuffle(order)
    return sum(units[n] for n in order)

def update(x):
    losses = {{"a": (w * x).sum(), "b": (w * x.flip(0)).sum()}}
    merged = project([flat(loss) for loss in losses.values()])
    w.grad = merged.view_as(w)
    if w.grad.isnan().any():
        found()

for x in (torch.tensor([1.0, 2.0]), torch.zeros(2)):
    update(x)
"""


@pytest.mark.parametrize(("kept", "defined"), [(True, ""), (False, ""), (True, f"w.register_{HOOK}(print)")])
def test_what_a_function_makes_of_gradients_that_it_asks_for_by_a_graph_that_is_kept(kept, defined):
    """Where the graph is gone, or hooks would be called once more, nothing is said."""
    left = []
    program = PROJECTED.format(kept=kept).replace("def flat", f"{defined}\ndef flat")
    found = user_program.found(program, lambda: bad_edit(left, asked=True), left=left)
    if not kept or defined:
        assert found is None
        return
    assert (found.op, found.phase, found.rows) == ("aten.div", "backward", None)
    assert found.line.endswith("in project: units.append(g / g.norm())")


CALLBACK = """
class EvenGradients:
    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for p in model.parameters():
            {edit}

class Trainer:
    def __init__(self, model, callback):
        self.model, self.callback = model, callback

    def train(self):
        (self.model(torch.ones(4, 2)) * 0).sum().backward()
        left.extend((p, p.grad.clone()) for p in self.model.parameters())
        self.callback.on_pre_optimizer_step(None, None, None, model=self.model)
        self.judged()

    def judged(self):
        found()

Trainer(nn.Linear(2, 1), EvenGradients()).train()
"""


@pytest.mark.parametrize(("edit", "named"), [("p.grad.mul_(0.5 / p.grad.norm())", True), ("p.grad.mul_(0.5)", False)])
def test_a_callback_of_a_trainer_that_has_returned(edit, named, monkeypatch):
    """The loop is a library's, so that no frame of the program's shows what was done since the backward."""
    from finitune.monitor.statements import gradient_edits

    monkeypatch.setattr(gradient_edits, "_edits", lambda begins: [])
    left = []
    found = user_program.found(CALLBACK.format(edit=edit), lambda: bad_edit(left), nn=nn, left=left)
    if not named:
        assert found is None
        return
    assert (found.op, found.phase) == ("aten.reciprocal", "backward")
    assert found.line.endswith("in on_pre_optimizer_step: p.grad.mul_(0.5 / p.grad.norm())")
