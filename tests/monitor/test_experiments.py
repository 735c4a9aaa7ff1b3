"""Experiments on a step whose loss has climbed."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from finitune.monitor.experiments import outcome
from finitune.monitor.replay.arms import arm
from finitune.monitor.replay.rerun import Setting
from finitune.monitor.watch import watch
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
        _, capture, _ = earlier._kept
        level = float(loss.detach()) / (8 if sums else 1)
        inquiry = SimpleNamespace(
            capture=capture, event={"symptom": "divergence", "loss": float(loss.detach()) * 10},
            signals={"loss": Series(range(1, 9), [level] * 8)},
            setting=lambda: Setting(model=model, optimizer=optimizer, capture=capture, scale=1.0),
        )  # fmt: skip
        function, arguments = arm("row-by-row")
        assert outcome(inquiry, lambda setting: function(setting, *arguments)) == expected
