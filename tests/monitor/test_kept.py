"""What is kept of a step so that it can be run again: its own calls, and no more."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.loop import SETUPS, Loop, batch
from torch import nn

from finitune.chapter import Sighting
from finitune.monitor.earlier_batches import EarlierBatch
from finitune.monitor.replay.capture import MAX_CALLS, Capture
from finitune.monitor.watch import watch
from finitune.recording import Recording
from finitune.series import Series


def test_what_is_kept_of_a_line_search_is_one_evaluation_of_its_closure(tmp_path):
    """Run again as a yardstick, the batch must give the one loss that was read, not the sum over the search."""
    loop = Loop(**SETUPS["closure lbfgs"], bad=-1)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run") as watched:
        for _ in range(4):
            loop.step()
        (earlier,) = watched._incidents._earlier.values()
        _, capture, _ = earlier._kept
        assert len(capture.micro_steps) == 1


def test_forwards_without_backward_are_not_hoarded(tmp_path):
    loop = Loop(bad=2)
    with watch(loop.model, loop.optimizer, run_dir=tmp_path / "run") as watched:
        loop.step()
        for i in range(5 * MAX_CALLS):
            loop.model(batch(i)[0])
        assert len(watched.last_calls()) == MAX_CALLS
        with torch.no_grad():
            loop.model(batch(0)[0])
        loop.step()
        assert not len(watched.last_calls())
    (origin,) = Recording.load(tmp_path / "run").events("origin")
    assert origin["repeats"]
    assert origin["why_not"] is None


def test_of_a_long_chain_of_cells_nothing_is_kept(tmp_path, capsys):
    """Each step of a recurrent cell is a call that is fed by the one before."""
    torch.manual_seed(0)
    cell, head = nn.GRUCell(2, 4), nn.Linear(4, 1)
    optimizer = torch.optim.SGD([*cell.parameters(), *head.parameters()], lr=0.1)
    with watch(cell, optimizer, run_dir=tmp_path / "run") as watched:
        for step in range(1, 5):
            h = torch.zeros(3, 4)
            for x in torch.randn(5 * MAX_CALLS, 3, 2):
                h = cell(x, h) * (1e30 if step == 3 else 1.0)
                assert len(watched.last_calls()) <= MAX_CALLS
            loss = head(h).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    recording = Recording.load(tmp_path / "run")
    (origin,) = recording.events("origin")
    assert origin["repeats"] is None
    assert f"more than {MAX_CALLS} calls of modules feed one another" in origin["why_not"]
    assert "finitune run --watch-step 3 -- COMMAND" in capsys.readouterr().err


@pytest.mark.parametrize(("level", "needed"), [("note", 8.0 / 0.005), ("suspicion", 4.0)])
def test_how_much_worse_an_earlier_batch_must_be_for_a_rise_to_be_a_divergence(level, needed):
    """Adam jumps near a minimum, and comes back: only a loss that is back where the run began is lost for certain."""
    loss = Series(range(1, 201), [*([8.0] * 20), *([0.005] * 180)])
    earlier = EarlierBatch()
    earlier._kept = (100, Capture(), 0.005)
    seen = Sighting(step=200, text="", level=level, numbers={"loss": 0.08, "before": 0.005})
    assert earlier.lost(loss, seen) == pytest.approx(needed)
