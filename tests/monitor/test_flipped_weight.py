"""A bit of a weight flips between two steps, and every number may stay finite."""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from torch import nn

from finitune.diagnosis.diagnose import diagnose
from finitune.monitor.process import Stopped
from finitune.monitor.watch import watch

CAUSE = "hardware-fault-sdc"


def trained(run_dir, activation=nn.ReLU, *, changed: float | None = None, rate: float = 1e-3, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32, dtype=dtype), activation(), nn.Linear(32, 4, dtype=dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    with suppress(Stopped), watch(model, optimizer, run_dir=run_dir):
        for step in range(1, 17):
            if step == 12:
                weight = model[0].weight.data.view(-1)
                at = weight.abs().argmax()
                if changed is None:
                    kind, bit = (torch.int32, 30) if dtype == torch.float32 else (torch.int16, 14)
                    weight.view(kind)[at] ^= 1 << bit
                else:
                    weight[at] = changed
            x = torch.randn(16, 8, dtype=dtype)
            loss = nn.functional.cross_entropy(model(x).float(), (x.sum(1) > 0).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return diagnose(run_dir).incidents


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_fires_where_every_number_stays_finite(tmp_path, dtype):
    first = trained(tmp_path / "run", dtype=dtype)[0]
    assert (first.symptom, first.causes[0].cause, first.causes[0].proved) == ("divergence", CAUSE, True)
    assert first.origin is not None
    assert (first.origin.phase, first.origin.tensor) == ("parameter", "0.weight")


def test_fires_where_the_next_operator_overflows(tmp_path):
    first = trained(tmp_path / "run", nn.GELU)[0]  # which cubes
    assert (first.step, first.symptom, first.causes[0].cause) == (12, "nonfinite-loss", CAUSE)
    assert first.causes[0].proved
    assert first.origin is not None
    assert first.origin.op == "aten.gelu"


def test_stays_quiet_for_a_weight_that_no_bit_makes_of_another(tmp_path):
    first = trained(tmp_path / "run", nn.GELU, changed=1.7e30)[0]
    assert CAUSE not in [one.cause for one in first.causes]


def test_stays_quiet_for_a_learning_rate_that_ruins_all_weights(tmp_path):
    torch.manual_seed(0)
    incidents = trained(tmp_path / "run", changed=0.1, rate=1e8)
    assert incidents
    assert CAUSE not in [one.cause for incident in incidents for one in incident.causes]


def test_fires_for_a_weight_of_about_one_that_is_nan(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LayerNorm(8), nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with suppress(Stopped), watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 17):
            if step == 12:
                model[0].weight.data.view(torch.int32)[4] ^= 1 << 30
            loss = model(torch.randn(16, 8)).square().mean() + model[0].weight.mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    first = diagnose(tmp_path / "run").incidents[0]
    assert (first.symptom, first.causes[0].cause) in {("nonfinite-update", CAUSE), ("nonfinite-loss", CAUSE)}
