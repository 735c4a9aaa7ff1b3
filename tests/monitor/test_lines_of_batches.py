"""A bad batch is named with the line that hands it to the model, or that makes it."""

from __future__ import annotations

import math

import pytest
import torch
from tests.monitor.loop import BAD
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording


def test_the_line_that_hands_a_bad_batch_to_the_model(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))

    def evaluate():
        return model(torch.ones(4, 2))

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 5):
            x = torch.randn(4, 2)
            x[1, 0] = math.inf if step == BAD else 0.0
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    assert evaluate() is not None
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert event["origin"]["tensor"] == "input 0"
    assert "model(x).square().mean().backward()" in event["origin"]["line"]


def test_the_line_of_a_function_that_has_handed_a_bad_batch_to_the_model(tmp_path):
    model = nn.Linear(2, 1)

    def compute_loss(inputs):
        return model(inputs["x"]).square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = iter([torch.full((4, 2), math.inf if step == BAD else 1.0) for step in range(1, 5)])
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for _ in range(1, 5):
            optimizer.zero_grad()
            compute_loss({"x": next(batches)}).backward()
            optimizer.step()
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert event["origin"]["tensor"] == "input 0"
    assert event["origin"]["line"].endswith('in compute_loss: return model(inputs["x"]).square().mean()')


class Stream:
    """Batches of a generator function of the user's, one of which holds the root of a negative number."""

    def __iter__(self):
        for step in range(1, 5):
            x = torch.ones(4, 2)
            x[2] -= 2.0 * (step == BAD)
            yield torch.sqrt(x), step


@pytest.mark.parametrize("loop", ["for", "enumerate", "next"])
def test_the_statement_of_a_generator_that_the_batch_comes_from(tmp_path, loop):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        if loop == "for":
            for x, _step in Stream():
                take_step(model, optimizer, x)
        elif loop == "enumerate":
            for _n, (x, _step) in enumerate(Stream()):
                take_step(model, optimizer, x)
        else:
            batches = iter(Stream())
            for _n in range(4):
                x, _step = next(batches)
                take_step(model, optimizer, x)
    event, *_ = Recording.load(tmp_path / "run").events("origin")
    assert (event["origin"]["op"], event["origin"]["phase"]) == ("aten.sqrt", "input")
    assert event["origin"]["line"].endswith("in __iter__: yield torch.sqrt(x), step")
    assert event["origin"]["tensor"] == "x"


def take_step(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
