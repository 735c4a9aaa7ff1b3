"""An optimizer of the program's own that is given its update as an argument: no parameter has a gradient."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from finitune import Recording, watch

STEPS = 8


class Server(torch.optim.Optimizer):
    """Of federated averaging: it moves to what its clients report, each counting for its loss."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.5})

    @torch.no_grad()
    def step(self, reports):
        (group,) = self.param_groups
        weights = [loss.pow(-0.5) for loss, _ in reports]
        for place, p in enumerate(group["params"]):
            moved = sum(w * moved[place] for w, (_, moved) in zip(weights, reports, strict=True))
            p.sub_(group["lr"] * moved / sum(weights))


def trained(model, server, bad):
    """All rounds; in the round `bad` a client has a loss of exactly 0."""
    generator = torch.Generator().manual_seed(0)
    left = []
    for number in range(1, STEPS + 1):
        losses = torch.rand(2, generator=generator) * torch.tensor([1.0, float(number != bad)])
        moved = [[0.1 * torch.randn(p.shape, generator=generator) for p in model.parameters()] for _ in losses]
        server.step(list(zip(losses, moved, strict=True)))
        left.append([p.detach().clone() for p in model.parameters()])
    return left


def run(directory=None, *, bad=0, mode="guard"):
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    server = Server(model.parameters())
    watched = watch(model, server, run_dir=directory, mode=mode) if directory else None
    left = trained(model, server, bad)
    if watched is not None:
        watched.close()
    return left


def test_a_healthy_run_is_seen_and_the_same(tmp_path):
    for some, others in zip(run(), run(tmp_path / "run"), strict=True):
        assert all(map(torch.equal, some, others))
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("incident")
    assert recording.signals["skipped"].last_step == STEPS


@pytest.mark.parametrize("bad", [1, 4])
def test_an_update_that_is_not_finite_is_discarded_and_located(bad, tmp_path):
    left = run(tmp_path / "run", bad=bad)
    assert all(p.isfinite().all() for p in left[-1])
    (event,) = Recording.load(tmp_path / "run").events("incident")
    assert (event["step"], event["symptom"]) == (bad, "nonfinite-update")
    (origin,) = (event["origin"] for event in Recording.load(tmp_path / "run").events("origin"))
    assert (origin["phase"], origin["op"]) == ("optimizer", "aten.pow")
    assert "loss.pow(-0.5)" in origin["line"]


def test_where_it_is_observed_alone_nothing_is_changed(tmp_path):
    for some, others in zip(run(bad=4), run(tmp_path / "run", bad=4, mode="observe"), strict=True):
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(some, others, strict=True))
    recording = Recording.load(tmp_path / "run")
    assert recording.events("incident")[0]["step"] == 4
    assert recording.signals["skipped"].last_step == STEPS


def test_a_step_that_writes_nothing_is_none(tmp_path):
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    watched = watch(model, optimizer, run_dir=tmp_path / "run")
    optimizer.step()
    watched.close()
    assert watched.step == 0
