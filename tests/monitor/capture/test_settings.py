"""A weight of its loss that a program sets in its model, as a curriculum does, is no divergence of the weights."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from finitune.diagnosis.recorded import diagnose
from finitune.monitor.capture.settings import as_set, settings_of
from finitune.monitor.watch import watch

hardness = 1.0
SET = {
    "attribute": lambda model, to: setattr(model, "hardness", to),
    "config": lambda model, to: setattr(model.config, "hardness", to),
    "entry": lambda model, to: model.weights.update(hardness=to),
    "buffer": lambda model, to: model.buffer.fill_(to),
    "global": lambda _, to: globals().update(hardness=to),
    "word": lambda model, to: setattr(model, "mode", "hard" if to == 4 else "soft"),
    "function": lambda model, to: setattr(model, "times", hard if to == 4 else None),
}


def hard():
    return 4.0


class Weighted(nn.Linear):
    def __init__(self, where):
        super().__init__(4, 4)
        self.where, self.hardness, self.weights = where, 1.0, {"hardness": 1.0}
        self.config, self.mode, self.times = SimpleNamespace(hardness=1.0), "soft", None
        self.register_buffer("buffer", torch.ones(()))

    @property
    def weights_by_place(self):
        return {
            "attribute": self.hardness, "config": self.config.hardness, "entry": self.weights["hardness"],
            "buffer": self.buffer, "global": hardness, "word": {"soft": 1.0, "hard": 4.0}[self.mode],
            "function": self.times() if self.times is not None else 1.0,
        }  # fmt: skip

    def forward(self, x, labels):
        weight = hardness if self.where == "global" else self.weights_by_place[self.where]
        return weight * nn.functional.cross_entropy(super().forward(x), labels)


@pytest.mark.parametrize("where", SET)
def test_a_weight_that_the_program_sets(where, tmp_path):
    torch.manual_seed(0)
    model = Weighted(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(60):
            SET[where](model, 1.0 if step < 40 else 4.0)
            x = torch.randn(8, 4)
            model(x, labels=x.argmax(1)).backward()
            optimizer.step()
            optimizer.zero_grad()
    now = float(model.weights_by_place[where])
    SET[where](model, 1.0)
    assert now == 4.0, "put back"
    assert [i for i in diagnose(tmp_path / "run").incidents if i.level == "incident"] == []


def test_what_a_run_with_them_writes_is_put_back():
    model = Weighted("buffer")
    known = settings_of([model])
    model.buffer.fill_(3.0)
    with as_set(known):
        assert model.buffer == 1
        model.buffer.add_(7)
        model.hardness = 5.0
        del model.weights["hardness"]
    with as_set(known):
        assert model.buffer == 1
    assert (model.buffer, model.hardness, model.weights) == (3, 1.0, {"hardness": 1.0})
