"""The healthy controls stay finite, apart from the overflows that a loss scaler is there for."""

from __future__ import annotations

import math

import pytest
import torch

from finitune.gym.healthy import CONTROLS
from finitune.gym.loop import train


@pytest.mark.parametrize("name", CONTROLS)
def test_stays_finite_and_learns(name):
    run = CONTROLS[name]()
    steps = list(train(run))
    assert 6 <= len(steps) <= 40
    assert all(math.isfinite(step.loss) for step in steps)
    assert all(p.isfinite().all() for p in run.model.parameters())
    if "scale" in name:
        assert steps[-1].loss_scale < steps[0].loss_scale
    if name == "domain-shift":
        assert steps[24].loss > steps[23].loss + 1
    elif name != "lora":
        assert steps[-1].loss < steps[0].loss


def test_a_packed_row_keeps_its_sequences_apart():
    run = CONTROLS["packed"]()
    batch = dict(next(iter(run.batches)))
    del batch["labels"]
    changed = dict(batch, input_ids=batch["input_ids"].clone())
    changed["input_ids"][0, 0] = 20
    with torch.no_grad():
        a, b = run.model(**batch).logits, run.model(**changed).logits
    assert not torch.equal(a[0, :32], b[0, :32])
    torch.testing.assert_close(a[0, 32:], b[0, 32:])
