"""A loop that calls several modules in one step: all of them are run again, watched, and left as they were."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording


def train(directory, *, bad_at=None, bad=float("nan"), watched=True):
    """The statistics of the head's batch norm at the end, and the recording."""
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
    head = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 2))
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    with watch(body, optimizer, run_dir=directory) if watched else torch.enable_grad():
        for step in range(1, 7):
            x, labels = torch.randn(8, 4), torch.randint(0, 2, (8,))
            scores = head(body(x))
            loss = F.cross_entropy(scores * (bad if step == bad_at else 1.0), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return [head[0].running_mean.tolist(), head[0].running_var.tolist(), head[0].num_batches_tracked.item()]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_the_statistics_of_every_module_are_put_back(tmp_path, bad):
    alone = train(tmp_path / "alone", bad_at=6, bad=bad, watched=False)
    assert train(tmp_path / "run", bad_at=6, bad=bad) == alone


class Angles(nn.Module):
    def __init__(self):
        super().__init__()
        self.directions = nn.Parameter(torch.eye(3, 4))

    def forward(self, x):
        return torch.acos(F.normalize(x) @ F.normalize(self.directions).T)


def test_a_gradient_that_is_bad_in_the_second_module_is_located_there(tmp_path):
    torch.manual_seed(0)
    body, head = nn.Linear(4, 4), Angles()
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1)
    with watch(body, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            head.directions.data = torch.eye(3, 4)
            features = body(torch.randn(6, 4))
            if step == 3:  # a sample that is a direction itself: the cosine is 1, where acos has no derivative
                features = torch.cat([features[:5], 8 * head.directions[:1].detach()])
            loss = head(features).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (origin,) = (event["origin"] for event in Recording.load(tmp_path / "run").events("origin"))
    assert origin["module"] == "Angles"
    assert origin["phase"] == "backward"
    assert "acos" in origin["line"]
