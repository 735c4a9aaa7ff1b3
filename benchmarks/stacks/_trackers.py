"""What a tracker holds of finitune's signals, read back from its own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
