"""A model that is given, and returns, a dict that holds itself."""

from __future__ import annotations

import torch
from torch import nn

from finitune.monitor.probes.leaves import leaves_of
from finitune.monitor.watch import watch
from finitune.recording import Recording


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x, context):
        out = {"logits": self.linear(x), "context": context}
        out["self"] = out
        return out


def trained(run_dir, bad: int | None = None) -> Recording:
    torch.manual_seed(0)
    model = Tagger()
    optimizer = torch.optim.AdamW(model.parameters())
    context = {"step": 0}
    context["of"] = context
    with watch(model, optimizer, run_dir=run_dir):
        for step in range(1, 6):
            context["step"] = step
            out = model(torch.randn(3, 4), context)
            loss = out["logits"].square().mean() / (0.0 if step == bad else 1.0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Recording.load(run_dir)


def test_a_healthy_run_is_watched_in_silence(tmp_path, capfd):
    recording = trained(tmp_path / "run")
    assert not recording.events("broken", "incident")
    assert "failed" not in capfd.readouterr().err


def test_a_bad_step_is_located(tmp_path):
    recording = trained(tmp_path / "run", bad=3)
    assert not recording.events("broken")
    (event,) = recording.events("origin")
    assert event["origin"]["op"] == "aten.div"


def test_each_part_once():
    tensor, holder = torch.ones(1), {}
    holder |= {"a": tensor, "b": [1, holder], "c": tensor}
    assert sum(leaf is tensor for leaf in leaves_of(holder)) >= 1
    assert leaves_of({"a": tensor, "b": [tensor, 2]}) == [tensor, tensor, 2]
