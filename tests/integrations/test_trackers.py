"""What a tracker is told: the true numbers, once each, and what finitune said."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.integrations.test_transformers import rows, trainer  # noqa: E402
from transformers.integrations import integration_utils  # noqa: E402

from finitune.integrations.trackers import TrackerFeed  # noqa: E402
from finitune.series import Series  # noqa: E402


def monitor(losses, alerts=()):
    loss, skipped = Series(), Series()
    for step, value in enumerate(losses, start=1):
        loss.add(step, value)
        skipped.add(step, float(not math.isfinite(value)))
    return SimpleNamespace(
        step=len(losses), signals={"loss": loss, "skipped": skipped}, alerts=list(enumerate(alerts, start=1))
    )


def test_a_bad_loss_among_several_is_not_lost_and_skipped_steps_add_up():
    feed = TrackerFeed()
    told = feed.numbers(monitor([3.0, math.inf, 2.0, math.nan, 1.0]))
    assert told == {"finitune/loss": math.inf, "finitune/skipped": 2.0}
    assert feed.numbers(monitor([3.0, math.inf, 2.0, math.nan, 1.0])) == {}
    assert feed.numbers(monitor([3.0, math.inf, 2.0, math.nan, 1.0, 0.5, 0.25])) == {
        "finitune/loss": 0.25, "finitune/skipped": 0.0
    }  # fmt: skip


def test_an_alert_is_told_once():
    feed = TrackerFeed()
    assert feed.texts(monitor([1.0], alerts=["a", "b"])) == ["a", "b"]
    assert feed.texts(monitor([1.0], alerts=["a", "b"])) == []
    assert feed.texts(monitor([1.0], alerts=["a", "b", "c"])) == ["c"]


class Reporter(transformers.TrainerCallback):
    """Stands where TensorBoard's callback stands in a trainer; the real one is used in `make conformance`."""

    def __init__(self):
        self.logs = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.logs.append((state.global_step, dict(logs)))


def test_the_trainers_own_reporter_gets_what_the_guard_measured(tmp_path, monkeypatch):
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "ours", Reporter)
    own = trainer(tmp_path, rows(12, unsupervised=range(4, 6)), max_steps=6, save_strategy="no")
    reporter = Reporter()
    own.add_callback(reporter)
    own.train()
    told = {step: logs for step, logs in reporter.logs if "finitune/loss" in logs}
    assert sorted(told) == [1, 2, 3, 4, 5, 6]
    assert math.isnan(told[3]["finitune/loss"])
    assert [told[step]["finitune/skipped"] for step in sorted(told)] == [0, 0, 1, 0, 0, 0]
    assert told[2]["finitune/alerts"] == 0
    assert told[3]["finitune/alerts"] > 0
    assert all("finitune/loss" not in logs for _, logs in [(0, entry) for entry in own.state.log_history])


@pytest.mark.slow
def test_mlflow_itself_gets_the_true_loss_and_the_number_of_alerts(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    own = trainer(tmp_path, rows(12, unsupervised=range(4, 6)), max_steps=6, save_strategy="no", report_to=["mlflow"])
    own.train()
    client = mlflow.MlflowClient(tracking_uri=(tmp_path / "mlruns").as_uri())
    (run,) = client.search_runs(["0"])
    losses = {entry.step: entry.value for entry in client.get_metric_history(run.info.run_id, "finitune/loss")}
    assert sorted(losses) == [1, 2, 3, 4, 5, 6]
    assert [step for step, loss in losses.items() if math.isnan(loss)] == [3]
    alerts = {entry.step: entry.value for entry in client.get_metric_history(run.info.run_id, "finitune/alerts")}
    assert alerts[2] == 0 < alerts[3]


@pytest.mark.slow
def test_tensorboard_itself_gets_the_true_loss_and_the_text_of_the_alert(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "board"))
    data = rows(12, unsupervised=range(4, 6))
    own = trainer(tmp_path, data, max_steps=6, save_strategy="no", report_to=["tensorboard"])
    own.train()
    (file,) = (tmp_path / "board").rglob("events.out.tfevents.*")
    events = EventAccumulator(str(file)).Reload()
    (tag,) = (tag for tag in events.Tags()["scalars"] if tag.endswith("finitune/loss"))
    assert [entry.step for entry in events.Scalars(tag) if math.isnan(entry.value)] == [3]
    assert any("finitune/alert" in tag for tag in events.Tags()["tensors"])
