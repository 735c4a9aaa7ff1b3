"""A model that gives one answer to everything: told from a batch without a gradient by the weights of before."""

from __future__ import annotations

import pytest
import torch
from tests.monitor.loop import same

from finitune.gym.data import batches
from finitune.gym.loop import Options, prepare, train
from finitune.gym.models import tiny
from finitune.monitor.watch import watch
from finitune.recording import Recording

JUMPS = 7


def trained(tmp_path, mode, *, rate=0.5, then=1000.0, steps=34):
    model = tiny("llama", seed=4)
    run = prepare(model, batches(steps, seed=4), lambda p: torch.optim.SGD(p, lr=rate), Options(clip=None))
    with watch(run.model, run.optimizer, run_dir=tmp_path / mode, mode=mode):
        losses = []
        for step in train(run):
            losses.append(step.loss)
            if step.step == JUMPS - 1:
                run.optimizer.param_groups[0]["lr"] = then
    return losses, model, Recording.load(tmp_path / mode)


@pytest.mark.slow
def test_updates_that_left_no_gradient_are_taken_back_and_taken_again_at_the_rate_of_before(tmp_path):
    losses, model, recording = trained(tmp_path, "heal")
    (incident,) = [event for event in recording.events("incident") if event["level"] == "incident"]
    assert incident["symptom"] == "divergence"
    assert "the weights of step 0 give this batch one" in incident["text"]
    (applied, kept) = recording.events("remedy")
    assert (applied["remedy"], applied["cause"], kept["state"]) == ("lower-learning-rate", "lr-too-high", "kept")
    assert "from step 7 on at 0.0005 times the learning rate" in applied["text"]
    assert losses[-1] < losses[0]
    reference, expected, _ = trained(tmp_path, "observe", then=0.5)
    assert losses[-8:] == pytest.approx(reference[-8:], rel=1e-5)
    for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_without_earlier_weights_it_stays_a_suspicion(tmp_path):
    _, _, recording = trained(tmp_path, "guard")
    levels = {(event["symptom"], event["level"]) for event in recording.events("incident")}
    assert ("zero-gradient", "suspicion") in levels
    assert not any(level == "incident" for _, level in levels)


def test_batches_that_give_no_gradient_change_nothing(tmp_path):
    """The weights of before give them none either: a loss that lies where it cannot fall."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, run_dir=tmp_path / "run", mode="heal"):
        for step in range(30):
            x = torch.randn(8, 4, generator=torch.Generator().manual_seed(step))
            loss = model(x).mean() if step < 12 else (model(x) * 0).mean() + 1
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 12:
                before = {k: v.clone() for k, v in model.state_dict().items()}
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("remedy")
    assert {event["level"] for event in recording.events("incident")} == {"suspicion"}
    assert same(before, dict(model.state_dict()))
