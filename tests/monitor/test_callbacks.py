"""Weights that are written to after the step, by what a trainer of a library calls."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

OF_A_LIBRARY = """
class Trainer:
    def __init__(self, model, optimizer, callback):
        self.model, self.optimizer, self.callback, self.state = model, optimizer, callback, State()

    def train(self):
        for _ in range(12):
            ids = torch.arange(8)
            loss = torch.nn.functional.cross_entropy(self.model(ids), ids % 2)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.state.step += 1
            self.callback(self)

class State:
    step = 0
"""


def train_by_library(directory, callback):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(8, 4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    library = {"torch": torch}
    exec(compile(OF_A_LIBRARY, "site-packages/trainer.py", "exec"), library)
    with pytest.raises(SystemExit), watch(model, optimizer, run_dir=directory):
        library["Trainer"](model, optimizer, callback).train()
    recording = Recording.load(directory)
    assert not recording.events("broken")
    first, *_ = recording.events("incident")
    assert (first["step"], first["symptom"]) == (7, "nonfinite-update")
    return recording.events("origin")[0]["origin"]


def test_weights_that_others_have_spoilt_are_not_blamed_on_an_adam(tmp_path):
    def write(trainer):
        if trainer.state.step == 7:
            table = trainer.model[0].weight.data  # whose versions do not count
            table.copy_(table / (torch.arange(8.0)[:, None] * table / table) * 0)

    origin = train_by_library(tmp_path / "run", write)
    assert (origin["phase"], origin["tensor"], origin["rows"]) == ("parameter", "0.weight", [0])


class EvenRows:
    """As the callbacks of trainers are given it."""

    def __init__(self, every):
        self.every = every

    def on_step_end(self, state, model=None, **kwargs):
        if state.step % self.every == 0:
            table = model[0].weight.data
            table[1] -= table[1]
            length = table.norm(dim=1, keepdim=True)
            table.copy_(table / length * length.mean())


class EvenRowsWithoutTracking(EvenRows):
    @torch.no_grad()
    def on_step_end(self, state, model=None, **kwargs):
        if state.step % self.every:
            return
        unseen = torch.zeros(4)
        model[0].weight[7] = unseen.sum() / unseen.count_nonzero()


@pytest.mark.parametrize(("kind", "line"), [(EvenRows, "table / length"), (EvenRowsWithoutTracking, "unseen.sum() /")])
def test_weights_that_a_callback_has_spoilt_are_followed_into_it(tmp_path, kind, line):
    callback = kind(every=7)
    call = lambda trainer: callback.on_step_end(trainer.state, model=trainer.model)  # noqa: E731
    origin = train_by_library(tmp_path / "run", call)
    assert (origin["phase"], origin["op"], origin["tensor"]) == ("optimizer", "aten.div", "0.weight")
    assert line in origin["line"]
    assert " in on_step_end: " in origin["line"]
