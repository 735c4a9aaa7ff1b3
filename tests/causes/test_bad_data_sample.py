"""A record that is normalised by its own spread, in a run that is watched."""

import pytest

from finitune.diagnosis.recorded import diagnose

torch = pytest.importorskip("torch")
from finitune.monitor.watch import watch  # noqa: E402


def incidents(tmp_path, *, constant):
    """A record is normalised by its own spread, which is 0 where it is constant."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
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
    return [(one.step, one.causes[0].cause) for one in diagnose(tmp_path / "run").incidents]


def test_fires_on_a_batch_that_holds_nan(tmp_path):
    assert incidents(tmp_path, constant=True) == [(9, "bad-data-sample")]


def test_stays_quiet_on_a_finite_one(tmp_path):
    assert incidents(tmp_path, constant=False) == []
