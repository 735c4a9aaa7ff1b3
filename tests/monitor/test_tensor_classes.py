"""Batches of a class of their own, as images that carry the names of their files."""

from __future__ import annotations

from typing import Any

import torch
from tests.monitor.loop import without_the_end
from torch import Tensor, nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 4


class Image(Tensor):
    """Its parts need names that a flattened batch of them has lost."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__ and args[0].dim() < 2:
            raise ValueError("a batch of images that has been flattened cannot be sliced")
        return super().__torch_function__(func, types, args, kwargs or {})


def trained(run_dir: Any, *, sick: bool) -> tuple[list[float], Recording]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses: list[float] = []
    with watch(model, optimizer, run_dir=run_dir):
        for step in range(1, 8):
            spread = torch.ones(8, 1)
            spread[2] = 0.0 if sick and step == BAD else 1.0
            images = torch.randn(8, 6) * spread / spread
            loss = (1.0 - model(images.as_subclass(Image))).square().mean() / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses, Recording.load(run_dir)


def test_a_healthy_run_is_measured_in_silence(tmp_path, capsys):
    losses, recording = trained(tmp_path / "run", sick=False)
    assert len(losses) == len(recording.signals["loss"].values) == 7
    assert recording.events("incident", "suspicion", "broken") == []
    assert without_the_end(capsys.readouterr().err) == ""


def test_the_sample_that_spoils_a_step_is_named_and_proved(tmp_path):
    _, recording = trained(tmp_path / "run", sick=True)
    (incident,) = recording.events("incident")
    assert incident["step"] == BAD
    (origin,) = [event["origin"] for event in recording.events("origin")]
    assert (origin["phase"], origin["rows"]) == ("input", [2])
    assert {event["arm"]: event["result"] for event in recording.events("arm")} == {
        "leave-rows-out=2": "finite",
        "leave-rows-out=0": "non-finite",
    }
    assert recording.events("broken") == []
