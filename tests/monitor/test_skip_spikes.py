"""A step far above all that the run has shown is left out where the user asks for it, and only there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

KNOWN = 300


def train(directory, *, spikes=(), steps=KNOWN + 20, factor=1000.0, lr=1e-3, skip=True, mode="guard"):
    """Weights after every step, and the recording."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    weights = []
    with watch(model, optimizer, run_dir=directory, skip_spikes=skip, mode=mode):
        for step in range(1, steps + 1):
            x = torch.randn(16, 8)
            y = x.sum(1, keepdim=True) + torch.randn(16, 1)
            loss = (model(x) - (factor * y if step in spikes else y)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            weights.append(model.weight.detach().clone())
    return weights, Recording.load(directory)


def unmoved(weights):
    return [n + 1 for n in range(1, len(weights)) if torch.equal(weights[n], weights[n - 1])]


def test_a_spike_is_left_out_and_said(tmp_path, capsys):
    weights, recording = train(tmp_path / "run", spikes=[KNOWN + 5])
    assert unmoved(weights) == [KNOWN + 5]
    (action,) = [e for e in recording.events("action") if e["action"] == "skipped-step"]
    assert action["step"] == KNOWN + 5
    assert "skipped, as --skip-spikes asks for" in capsys.readouterr().err
    assert recording.signals["skipped"].at(KNOWN + 5) == 1.0


def test_without_the_option_it_is_taken(tmp_path):
    assert unmoved(train(tmp_path / "run", spikes=[KNOWN + 5], skip=False)[0]) == []


def test_observe_takes_every_step(tmp_path):
    assert unmoved(train(tmp_path / "run", spikes=[KNOWN + 5], mode="observe")[0]) == []


def test_a_run_without_spikes_is_the_same_bit_for_bit(tmp_path):
    asked, _ = train(tmp_path / "asked")
    plain, _ = train(tmp_path / "plain", skip=False)
    assert all(torch.equal(a, b) for a, b in zip(asked, plain, strict=True))


def test_a_level_that_stays_is_trained_on(tmp_path):
    left_out = unmoved(train(tmp_path / "run", spikes=range(KNOWN + 5, KNOWN + 21), lr=1e-9)[0])
    assert not any({step, step + 1, step + 2, step + 3} <= set(left_out) for step in left_out)
    assert max(left_out) < KNOWN + 15


@pytest.mark.parametrize("early", [2, 40])
def test_nothing_is_a_spike_before_the_run_is_known(tmp_path, early):
    assert unmoved(train(tmp_path / "run", spikes=[early], steps=60)[0]) == []
