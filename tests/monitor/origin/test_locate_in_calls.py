"""A loss that cannot be run again: what it was computed of is run again alone, and blamed only where it is bad."""

from __future__ import annotations

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording


class Unit(nn.Module):
    def __init__(self, hidden=None):
        super().__init__()
        self.project = nn.Linear(4, 6, bias=False)
        self.hidden = hidden

    def forward(self, x):
        y = self.project(x)
        y = y / y.norm(dim=1, keepdim=True)
        return y if self.hidden is None else torch.cat([y, y.new_full((len(y), 1), self.hidden)], 1)


def trained(directory, *, model, zero=False, spoil=1.0):
    """Four steps; in the third a row of zeros goes in, or the loss outside is multiplied by `spoil`."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=directory):
        for step in (1, 2, 3, 4):
            x = torch.randn(5, 4)
            x[2] *= 0.0 if zero and step == 3 else 1.0
            y = model(x)[:, :6]
            bank = torch.zeros(8, 6)
            bank[:5] = y  # written in place, and scanned: no node of these is run again
            scores = y.cumprod(1).cummax(1)[0] @ bank.T
            loss = F.cross_entropy(scores * (spoil if step == 3 else 1.0), torch.arange(5))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(directory)
    assert not recording.events("broken")
    (event,) = recording.events("origin")
    assert event["step"] == 3
    return event


def test_fires_where_the_model_put_out_what_is_not_finite(tmp_path):
    event = trained(tmp_path / "run", model=Unit(), zero=True)
    origin = event["origin"]
    assert (origin["op"], origin["phase"], event["repeats"], event["why_not"]) == ("aten.div", "forward", True, None)
    assert "y = y / y.norm(dim=1, keepdim=True)" in origin["line"]


@pytest.mark.parametrize("spoil", [float("nan"), float("inf"), -float("inf")])
def test_stays_quiet_where_the_loss_made_it(tmp_path, spoil):
    event = trained(tmp_path / "run", model=Unit(), spoil=spoil)
    assert event["origin"] is None or "y = y" not in event["origin"]["line"]


def test_stays_quiet_about_a_mask_that_is_put_out(tmp_path):
    event = trained(tmp_path / "run", model=Unit(hidden=-float("inf")), spoil=float("nan"))
    assert event["origin"] is None or event["origin"]["op"] not in ("aten.new_full", "aten.cat")


@pytest.mark.parametrize("offload", [torch.autograd.graph.save_on_cpu(), None], ids=["packed", "plain"])
def test_fires_where_what_is_saved_is_packed_by_hooks(tmp_path, offload):
    """As activations that are offloaded: the graph is not read, and the model is run again without them."""
    torch.manual_seed(0)
    model = Unit()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in (1, 2, 3):
            x = torch.randn(5, 4)
            x[2] *= 0.0 if step == 2 else 1.0
            with offload or contextlib.nullcontext():
                loss = (model(x) @ model(x.flip(1)).T).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (event,) = Recording.load(tmp_path / "run").events("origin")
    assert (event["step"], event["origin"]["op"], event["repeats"]) == (2, "aten.div", True)
