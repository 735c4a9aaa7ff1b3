"""What the framework's own tracker (TensorBoard, Trackio, MLflow, W&B...) is given, whichever framework logs.

Numbers under `finitune/...`, as the guard measured them and not as the trainer shows them; alerts as text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from finitune.monitor.process import Monitor

SHOWN = ("loss", "grad_norm", "loss_scale")


@dataclass(slots=True, kw_only=True)
class TrackerFeed:
    """What a tracker has not got yet."""

    reported_until: int = 0
    """Step up to which signals were passed on."""
    alerts: int = 0
    """Number of the last alert that was passed on."""

    def numbers(self, monitor: Monitor) -> dict[str, float]:
        """The newest of each signal since the last time, or the first that was not finite; skipped steps add up."""
        out: dict[str, float] = {}
        for name, series in monitor.signals.items():
            new = [value for _, value in series.since(self.reported_until).pairs()]
            if name in SHOWN and new:
                out[f"finitune/{name}"] = next((value for value in new if not math.isfinite(value)), new[-1])
            if name == "skipped" and new:
                out["finitune/skipped"] = sum(new)
        self.reported_until = monitor.step
        return out

    def texts(self, monitor: Monitor) -> list[str]:
        """What finitune has said since the last time."""
        new = [text for number, text in monitor.alerts if number > self.alerts]
        self.alerts = max([self.alerts, *(number for number, _ in monitor.alerts)])
        return new
