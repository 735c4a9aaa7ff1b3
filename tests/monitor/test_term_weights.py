"""A schedule of the factors by which a loop weighs the terms of its loss: the loss rises, and the model is as good."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.monitor.earlier_batches import RISE
from finitune.monitor.loss_graph.objective import number_of, read
from finitune.monitor.loss_graph.term_weights import is_weighted_otherwise
from finitune.monitor.watch import watch
from finitune.recording import Recording


def objective(loss_of):
    a, b = torch.randn(4, 3, requires_grad=True) * 1, torch.randn(4, 3, requires_grad=True) * 1
    return read(loss_of(a, b), {number_of(a), number_of(b)})


def near(a):
    return a.square().mean()


def small(a):
    return a.abs().sum()


@pytest.mark.parametrize(
    ("now", "then", "differ"),
    [
        (lambda a, b: 0.7 * near(a) + 0.3 * small(b), lambda a, b: 1.0 * near(a) + 0.0 * small(b), True),
        (lambda a, b: near(a) + 0.2 * small(b), lambda a, b: near(a) + 0.1 * small(b), True),
        (lambda a, b: near(a) + small(b), lambda a, _: near(a), True),
        (lambda a, b: near(a) + 0.12 * small(b), lambda a, b: near(a) + 0.1 * small(b), False),
        # A factor of the whole, as a count of tokens; micro-steps or samples that are computed alike.
        (lambda a, b: (near(a) + 0.1 * small(b)) / 800, lambda a, b: (near(a) + 0.1 * small(b)) / 300, False),
        (lambda a, b: near(a) + near(b), lambda a, _: near(a), False),
        # A multiplier that has grown is at fault itself; tasks that take turns share nothing.
        (lambda a, b: near(a) + 40.0 * small(b), lambda a, b: near(a) + 2.0 * small(b), False),
        (lambda a, _: near(a), lambda _, b: small(b), False),
    ],
)
def test_what_is_another_loss(now, then, differ):
    assert is_weighted_otherwise(objective(now), objective(then), far=RISE) == differ


def distilled(run_dir, mix_of, rate_of):
    """The incidents of a student that learns from a teacher first, and then from labels, which are another matter."""
    torch.manual_seed(0)
    teacher, student = nn.Linear(6, 4), nn.Linear(6, 4)
    student.load_state_dict(teacher.state_dict())
    with torch.no_grad():
        student.weight.add_(torch.randn(4, 6), alpha=0.1)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.05)
    with watch(student, optimizer, run_dir=run_dir):
        for step in range(1, 41):
            x, mix = torch.randn(16, 6), mix_of(step)
            soft, logits = teacher(x).detach().softmax(-1), student(x)
            hard = F.cross_entropy(logits, torch.randint(4, (16,)))
            loss = (1 - mix) * F.kl_div(logits.log_softmax(-1), soft, reduction="batchmean") + mix * hard
            optimizer.param_groups[0]["lr"] = rate_of(step)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Recording.load(run_dir).events("incident")


def test_stays_quiet_where_other_terms_come_in(tmp_path):
    assert not distilled(tmp_path / "run", lambda step: min(1.0, max(0.0, (step - 8) / 16)), lambda _: 0.5)


def test_fires_where_the_weights_are_at_fault(tmp_path):
    found = distilled(tmp_path / "run", lambda _: 0.1, lambda step: 0.05 if step < 12 else 400.0)
    assert [event["symptom"] for event in found[:1]] == ["divergence"]
