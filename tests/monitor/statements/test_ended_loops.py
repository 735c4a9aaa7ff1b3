"""What a loop within the step has made bad in one of its passes, in a loss that cannot be run again."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


def drain(level, inflow):
    flow = 0.5 * torch.sqrt(level)
    return level + inflow - flow


def in_a_for(level, valve, drop):
    for pass_ in range(4):
        level = checkpoint(drain, level, valve - (drop if pass_ == 1 else 0), use_reentrant=False)
    return level


def in_a_while(level, valve, drop):
    passes = 0
    while passes < 4:
        level = checkpoint(drain, level, valve - (drop if passes == 1 else 0), use_reentrant=False, debug=False)
        passes += 1
    return level


def origin_of(directory, scan):
    torch.manual_seed(0)
    model = nn.Linear(1, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=directory):
        for step in range(1, 7):
            valve = torch.sigmoid(model(torch.ones(1)))
            level = scan(torch.ones(3), valve, 9.0 if step == BAD else 0.0)
            loss = level.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(directory)
    (incident,) = recording.events("incident")
    assert incident["step"] == BAD
    assert not recording.events("broken")
    return recording.events("origin")[0]["origin"]


@pytest.mark.parametrize("scan", [in_a_for, in_a_while])
def test_of_a_function_that_is_checkpointed(tmp_path, scan):
    origin = origin_of(tmp_path / "run", scan)
    assert (origin["op"], origin["phase"]) == ("aten.sqrt", "forward")
    assert "flow = 0.5 * torch.sqrt(level)" in origin["line"]


def test_of_a_loop_in_the_function_that_runs(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(1, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 7):
            level = torch.full((3,), 1.0)
            valve = torch.sigmoid(model(torch.ones(1)))
            for hour in range(4):
                level = checkpoint(drain, level, valve - 9.0 * (step == BAD and hour == 1), use_reentrant=False)
            loss = level.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    origin = Recording.load(tmp_path / "run").events("origin")[0]["origin"]
    assert (origin["op"], origin["tensor"]) == ("aten.sqrt", "level")
    assert origin["peak"] is not None, "it was computed, not only read"
    assert "in drain: flow = 0.5 * torch.sqrt(level)" in origin["line"]


def test_what_is_computed_of_a_bad_batch_is_not_what_made_it(tmp_path):
    """A -inf that the loop itself has put into its batch, in a loop over micro-batches whose model makes NaN of it."""
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 7):
            optimizer.zero_grad()
            for part in range(2):
                x = torch.ones(3, 2)
                if (step, part) == (BAD, 1):
                    x[1] = float("-inf")
                loss = model(x).square().mean() / 2
                loss.backward()
            optimizer.step()
    origin = Recording.load(tmp_path / "run").events("origin")[0]["origin"]
    assert (origin["phase"], origin["op"]) == ("input", "input")
