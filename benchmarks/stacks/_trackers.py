"""What a tracker holds of finitune's signals, read back from its own files."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any


def installed(directory: Path) -> list[str]:
    """Those of TensorBoard and MLflow that there are, as `report_to` names them; what they write goes below here."""
    os.environ["TENSORBOARD_LOGGING_DIR"] = str(directory / "tensorboard")
    os.environ["MLFLOW_TRACKING_URI"] = (directory / "mlflow").as_uri()
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return [name for name in ("tensorboard", "mlflow") if importlib.util.find_spec(name)]


def seen(names: list[str], directory: Path) -> dict[str, Any]:
    """What each of `names` holds."""
    reading = {"tensorboard": tensorboard, "mlflow": mlflow}
    return {name: reading[name](directory / name) for name in names}


def tensorboard(directory: Path) -> dict[str, Any]:
    """`finitune/loss` by step, and how many alerts were written as text, from every event file under `directory`."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses: dict[str, float] = {}
    alerts = 0
    for file in directory.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file))
        events.Reload()
        tags = events.Tags()
        for tag in (tag for tag in tags["scalars"] if tag.endswith("finitune/loss")):
            losses.update({str(scalar.step): scalar.value for scalar in events.Scalars(tag)})
        alerts += sum(len(events.Tensors(tag)) for tag in tags["tensors"] if "finitune/alert" in tag)
    return {"loss": losses, "alerts": alerts}


def mlflow(directory: Path) -> dict[str, Any]:
    """The same from the newest run; MLflow takes no text, so it holds the number of alerts."""
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=directory.as_uri())
    (run, *_) = client.search_runs(["0"])
    losses = client.get_metric_history(run.info.run_id, "finitune/loss")
    alerts = client.get_metric_history(run.info.run_id, "finitune/alerts")
    return {
        "loss": {str(entry.step): entry.value for entry in losses},
        "alerts": max((int(entry.value) for entry in alerts), default=0),
    }
