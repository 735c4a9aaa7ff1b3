"""A memory of features that a loss keeps: a bad batch spoils it in the same step, and is named before it."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from finitune.monitor.watch import watch
from finitune.recording import Recording

BAD = 5


class ContrastWithMemory(nn.Module):
    memory: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("memory", F.normalize(torch.randn(16, 4), dim=1))
        self.place = 0

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        scores = torch.cat([(one * other).sum(1, keepdim=True), one @ self.memory.T.clone()], 1)
        self.memory[self.place : self.place + len(other)] = other.detach()
        self.place = (self.place + len(other)) % 16
        return F.cross_entropy(scores / 0.5, torch.zeros(len(one), dtype=torch.long))


def origin(run_dir: Any, *, memory_is_bad: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    encoder, contrast = nn.Linear(6, 4), ContrastWithMemory()
    optimizer = torch.optim.SGD(encoder.parameters(), lr=1e-2)
    with watch(encoder, optimizer, run_dir=run_dir):
        for step in range(1, BAD + 1):
            one, other = torch.randn(8, 6), torch.randn(8, 6)
            if step == BAD and memory_is_bad:
                contrast.memory.copy_(contrast.memory / torch.zeros(16, 4).square())
            if step == BAD and not memory_is_bad:
                other[2] = other[2] / torch.zeros(6)
            loss = contrast(encoder(one), encoder(other))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    (incident,) = Recording.load(run_dir).events("incident")
    assert incident["step"] == BAD
    return Recording.load(run_dir).events("origin")[0]["origin"]


def test_the_batch_that_has_spoilt_it_is_named(tmp_path):
    found = origin(tmp_path / "run", memory_is_bad=False)
    assert (found["phase"], found["rows"]) == ("input", [2])
    assert "other[2] / torch.zeros(6)" in found["line"]


def test_a_memory_that_is_bad_itself_is_named(tmp_path):
    found = origin(tmp_path / "run", memory_is_bad=True)
    assert "memory" in (found["tensor"] or found["line"])
