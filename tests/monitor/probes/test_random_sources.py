"""A model that draws from a source of the program's own: a replay draws what the step drew, and the program goes on as
if there had been none.
"""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

SOURCES = {
    "torch": lambda: torch.Generator().manual_seed(3),
    "numpy": lambda: np.random.default_rng(3),
    "numpy as it was": lambda: np.random.RandomState(3),
    "python": lambda: random.Random(3),
}


def draw(source, count):
    match source:
        case torch.Generator():
            return torch.rand(count, generator=source)
        case random.Random():
            return torch.tensor([source.random() for _ in range(count)])
        case _:
            return torch.from_numpy(source.random(count) if hasattr(source, "random") else source.rand(count)).float()


class Noisy(nn.Module):
    """With noise from what it is given, or from its own."""

    def __init__(self, own):
        super().__init__()
        self.layer, self.own = nn.Linear(4, 1), own

    def forward(self, x, source=None):
        return self.layer(x * draw(self.own if source is None else source, 4))


def losses(source, *, handed, bad, run_dir=None):
    torch.manual_seed(0)
    model = Noisy(None if handed else source)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)  # so that a step that is left out changes nothing else
    found = []

    def train():
        for step in range(1, 6):
            x = torch.ones(2, 4) * (math.inf if step == 3 and bad else 1.0)
            loss = model(x, *([source] if handed else [])).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())

    if run_dir is None:
        train()
    else:
        with watch(model, optimizer, run_dir=run_dir):
            train()
    return found


@pytest.mark.parametrize("handed", [True, False], ids=["an argument", "an attribute"])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_is_drawn_after_a_bad_step_is_as_without(tmp_path, source, handed):
    alone = losses(source(), handed=handed, bad=False)
    watched = losses(source(), handed=handed, bad=True, run_dir=tmp_path / "run")
    assert watched[:2] + watched[3:] == alone[:2] + alone[3:]
    assert len(Recording.load(tmp_path / "run").events("incident")) == 1


OF_THE_MODULE = torch.Generator().manual_seed(5)


class Global(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x):
        return self.layer(x).sqrt() if x.sum() == 0 else self.layer(x * torch.rand(4, generator=OF_THE_MODULE))


def test_so_is_what_the_program_keeps_in_a_variable(tmp_path):
    model = Global()
    model.layer.bias.data.zero_()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            # two calls, of which the first draws and the second makes the step bad
            loss = model(torch.ones(2, 4)).sum() + model(torch.full((2, 4), float(step != 3))).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert len(Recording.load(tmp_path / "run").events("incident")) == 1
    after, drawn = torch.rand(4, generator=OF_THE_MODULE), torch.Generator().manual_seed(5)
    for _ in range(9):
        torch.rand(4, generator=drawn)
    assert torch.equal(after, torch.rand(4, generator=drawn))


class Explorer(torch.optim.Optimizer):
    """A step with noise from its own source, or from torch's, which divides 0 by 0 where the gradient is 0."""

    def __init__(self, parameters, source):
        super().__init__(parameters, {"lr": 0.01})
        self.source = source

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                noise = torch.rand(p.shape, generator=self.source)
                p.sub_(group["lr"] * noise * p.grad / p.grad.abs())


@pytest.mark.parametrize("own", [True, False])
def test_an_update_that_is_taken_once_more_draws_nothing(tmp_path, own):
    model = nn.Linear(4, 1, bias=False)
    torch.manual_seed(7)
    source = torch.Generator().manual_seed(7) if own else torch.default_generator
    optimizer = Explorer(model.parameters(), source if own else None)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 6):
            optimizer.zero_grad()
            model(torch.full((2, 4), float(step != 3))).sum().backward()
            optimizer.step()
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert origin["origin"]["op"] == "aten.div"
    drawn = torch.Generator().manual_seed(7)
    for _ in range(5):
        torch.rand((1, 4), generator=drawn)
    assert torch.equal(source.get_state(), drawn.get_state())
