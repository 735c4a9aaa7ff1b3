"""Experiments on a step whose loss has climbed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.experiments import outcome
from finitune.monitor.replay.arms import arm
from finitune.monitor.replay.rerun import Setting
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.series import Series


class Pairs(nn.Module):
    def __init__(self, *, sums):
        super().__init__()
        self.table, self.sums = nn.Embedding(9, 4), sums

    def forward(self, ids, others):
        apart = (self.table(ids).unsqueeze(1) - self.table(others)).square().sum((1, 2))
        return apart.sum() if self.sums else apart.mean()


@pytest.mark.parametrize(("sums", "expected"), [(True, "diverged"), (False, "finite")])
def test_a_sum_over_samples_is_not_healed_by_taking_each_by_itself(tmp_path, sums, expected):
    """The mean of the parts is far below the loss that has climbed, and is the same in other units."""
    torch.manual_seed(0)
    model = Pairs(sums=sums)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run") as watched:
        loss = model(torch.arange(8), torch.randint(9, (8, 3)))
        loss.backward()
        optimizer.step()
        (earlier,) = watched._incidents._earlier.values()
        capture = earlier.batch()
        level = float(loss.detach()) / (8 if sums else 1)
        inquiry = SimpleNamespace(
            capture=capture, event={"symptom": "divergence", "loss": float(loss.detach()) * 10},
            signals={"loss": Series(range(1, 9), [level] * 8)},
            setting=lambda: Setting(model=model, optimizer=optimizer, capture=capture, scale=1.0),
        )  # fmt: skip
        function, arguments = arm("row-by-row")
        assert outcome(inquiry, lambda setting: function(setting, *arguments)) == expected


class Attending(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x, seen):
        score = (self.inner(x) @ x.transpose(1, 2)).masked_fill(~seen, -torch.inf)
        return (score.softmax(-1) @ x).sum((1, 2))


@pytest.mark.parametrize("keeps", [False, True])
def test_what_the_loop_has_taken_from_bad_outputs_refutes_no_cause(tmp_path, keeps):
    """An advantage of a critic is NaN whatever is changed in it: no arm could come out finite."""
    torch.manual_seed(0)
    model = Attending()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            seen = torch.ones(6, 3, 3, dtype=torch.bool)
            seen[2, 1] = step != 4
            value = model(torch.randn(6, 3, 4), seen)
            weight = (1 - value).detach() if keeps else 1.0
            optimizer.zero_grad()
            (value * weight).mean().backward()
            optimizer.step()
    (incident,) = diagnose(tmp_path / "run").incidents
    assert incident.causes[0].cause == "fully-masked-attention-rows"
    assert incident.causes[0].proved is not keeps


@pytest.mark.parametrize(("noise", "expected"), [(2.0, "finite"), (0.1, "diverged")])
def test_a_loss_as_large_as_those_of_other_batches_has_not_diverged(tmp_path, noise, expected):
    """What an arm leaves of the step is ten times the level of the run: usual where batches differ by as much."""
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    with watch(model, optimizer, run_dir=tmp_path / "run") as watched:
        loss = (model(x) - y).square().mean()
        loss.backward()
        optimizer.step()
        (earlier,) = watched._incidents._earlier.values()
        capture = earlier.batch()
        levels = (0.1 * float(loss.detach()) * (noise * torch.randn(40)).exp()).tolist()
        inquiry = SimpleNamespace(
            capture=capture, event={"symptom": "nonfinite-loss"}, signals={"loss": Series(range(1, 41), levels)},
            setting=lambda: Setting(model=model, optimizer=optimizer, capture=capture, scale=1.0),
        )  # fmt: skip
        function, arguments = arm("float32")
        assert outcome(inquiry, lambda setting: function(setting, *arguments)) == expected


def test_a_divergence_is_told_by_one_of_two_optimizers(tmp_path):
    torch.manual_seed(0)
    first, second = nn.Linear(4, 8), nn.Linear(8, 1)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (first, second)]
    x = torch.randn(64, 4)
    with watch(first, optimizers[0], run_dir=tmp_path / "run"), watch(second, optimizers[1]):
        for step in range(1, 44):
            loss = (second(first(x)) - x.sum(1, keepdim=True)).square().mean()
            for optimizer in optimizers:
                optimizer.param_groups[0]["lr"] = 1.2 if step >= 40 else 0.01
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    assert [one["symptom"] for one in Recording.load(tmp_path / "run").events("incident")].count("divergence") == 1
