import pytest
import torch
from torch import nn

from finitune.chapter import causes
from finitune.diagnosis.cases import diagnose_case
from finitune.diagnosis.ranking import diagnose, told_evidence
from finitune.monitor.watch import watch

CASE = {"log": ["WARNING: empty target in batch 7"], "config": {"note": "fails at the same step with a fixed order"}}


def test_fires_on_a_case_that_tells_of_it():
    (incident,) = diagnose_case(CASE).incidents
    assert "bad-data-sample" in [cause.cause for cause in incident.causes[:1]]


def test_stays_quiet_where_nobody_speaks_of_it():
    (incident,) = diagnose_case(
        {"config": {"learning_rate": 2e-05, "bf16": True}, "log": ["{'loss': 1.2, 'grad_norm': 0.5}"]}
    ).incidents
    assert "bad-data-sample" not in [cause.cause for cause in incident.causes if cause.bits > 0]
    assert told_evidence(causes()["bad-data-sample"], {}) == []


@pytest.mark.parametrize("constant", [True, False])
def test_a_record_that_was_normalised_by_its_own_spread_of_zero(tmp_path, constant):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    with watch(model, optimizer, run_dir=tmp_path / "run"):
        for step in range(1, 13):
            raw = torch.randn(4, 8)
            if constant and step == 9:
                raw[2] = 3.0  # a cached record of one value: its spread is 0
            features = (raw - raw.mean(1, keepdim=True)) / raw.std(1, keepdim=True)
            loss = (model(features) - raw.sum(1, keepdim=True)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    incidents = diagnose(tmp_path / "run").incidents
    assert [(one.step, one.causes[0].cause) for one in incidents] == [(9, "bad-data-sample")] * constant
