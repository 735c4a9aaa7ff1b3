"""The loss scale has no room: it starts too near its floor, may not rest, is fixed too low, or is not there.

## What happens

A dynamic scale is halved at each overflow and raised after some finite steps. Settings can take its room away: a start
a few octaves above the floor ends the run after that many overflows ("Current loss scale already at minimum"); a window
of a few steps raises it so often that one step in a few is skipped for good; a floor below 1 keeps a run alive that
overflows at scale 1, where the scale is not to blame, and learns nothing for the rest of its time. A static scale of 1
lets every gradient below 6e-8 vanish, and so does float16 without any scale.

## How to tell

Start, floor, window and hysteresis. From 2**16 down to 1 there are 16 halvings, and DeepSpeed stops at the overflow
after the last (one later for each step of hysteresis above 1). In the log: the slope of the scale in octaves per step;
from a scale s the run has log2(s / floor) halvings left.

## How to prove

Run the captured step again at scale 1: if it overflows there, no setting of the scale helps (fp16-activation-overflow,
untrained-token-embeddings). If it is finite, the setting was the fault. Where the scale is raised too often: at its own
scale the step overflows, at half of it not.

## What to do

Dynamic, from 2**16, floor 1, window 1000 (dynamic-loss-scale), or bfloat16, which has no scale (use-bfloat16).

## What does not help

A higher start or a lower floor, when the model overflows at scale 1: both only delay the end. A fixed scale, to be rid
of the message.

## References

01-ai/Yi#285, hiyouga/LLaMA-Factory#2030 (a larger start only delays), #918 (overflow down to scale 1),
deepinsight/insightface#2262 (scale 0 for ever), pytorch/pytorch#98828; DeepSpeed runtime/fp16/loss_scaler.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from finitune.chapter import Experiment
from finitune.evidence import DECISIVE, FLOAT16_ONLY, STRONG, Tells, evidence
from finitune.facts import DEFAULT_SCALE_POWER, Adapter, Precision
from finitune.finding import Evidence, Finding, Origin, Remedy, Severity, Where
from finitune.series import Series

LITTLE_ROOM = 6.0
"""Octaves. A healthy start skips two to four steps, and one spike later takes two more."""
SHORT_WINDOW = 19
"""Finite steps between two attempts to raise the scale: one step in twenty is then lost."""
LOW_STATIC = 2.0**7
"""Gradients of a usual size (1e-4 to 1e-8 per element) want 2**7 to 2**15 to lie within float16."""

SCALABLE = ("torch", "llama-factory")
"""Where a run without a loss scale could have one; others bring it along, or have none."""

experiments = [
    Experiment(arm="loss-scale-half", expect="finite"),
    Experiment(arm="again", expect="non-finite", placebo=True),
]
remedies = ["dynamic-loss-scale", "use-bfloat16"]
public_incidents = 2
foresees = "loss scale"
tells: Tells = {
    **FLOAT16_ONLY,
    "updates-taken": (-STRONG, "a loss scaler skips the step, and its schedule with it"),
    "loss-scale-collapse": (STRONG, "the loss scale has no room left"),
    "scale-at-minimum": (STRONG, "the loss scale has no room left"),
}


def foresee(precision: Precision, adapter: Adapter | None = None) -> Iterator[Finding]:
    scale, floor, window = precision.initial_scale, precision.min_scale, precision.scale_window
    if precision.compute != "float16":
        return
    scalable = precision.requested_by in SCALABLE and precision.scaler == "none"
    if scalable and precision.parameters != "float16" and not precision.cpu:
        yield _unscaled(precision, "info" if adapter is not None and adapter.kind not in (None, "none") else "warning")
    if precision.scaler == "static" and scale is not None and 0 < scale < LOW_STATIC:
        text = f"the loss scale is fixed at {scale:g}: gradients below {2.0**-24 / scale:.2g} become 0"
        yield _finding(precision, "loss_scale", text, "loss_scale", 0)
    if precision.scaler != "dynamic":
        return
    if floor is not None and floor < 1:
        text = f"the loss scale may fall to {floor:g}: a model that overflows at 1 runs on and learns nothing"
        # a healthy run never goes there: it is an alarm that is off, no harm by itself
        yield _finding(precision, "min_loss_scale", text, "min_loss_scale", 1, "info")
    elif scale and floor and 0 <= math.log2(scale / floor) < LITTLE_ROOM:
        overflows = round(math.log2(scale / floor)) + (precision.hysteresis or 1)
        text = f"the loss scale starts at {scale:g}, its floor is {floor:g}: {overflows} overflows in a row end the run"
        yield _finding(precision, "initial_scale_power", text, "initial_scale_power", DEFAULT_SCALE_POWER)
    if window is not None and 0 < window <= SHORT_WINDOW:
        text = f"the loss scale is raised after every {window} finite steps, so about 1 step in {window + 1} is skipped"
        yield _finding(precision, "loss_scale_window", text, "loss_scale_window", 1000)


def weigh(
    precision: Precision, loss_scale: Series, origin: Origin | None = None, incident: Mapping[str, Any] | None = None
) -> Iterator[Evidence]:
    scales = loss_scale.values[np.isfinite(loss_scale.values)]
    what, words = (incident or {}).get("scaler_spent") or ("", "")
    if not any(foresee(precision)) and _open(precision) and what != "window":
        return
    if what == "window":  # measured twice over: what it is set to, and that it comes to nothing each time
        yield evidence("loss scale", DECISIVE, f"the loss scale {words}")
        yield evidence("skipped", STRONG, "these steps are lost for good, one after a few, at one and the same scale")
    elif not any(foresee(precision)) or not len(scales):
        yield evidence("loss scale", -DECISIVE, "the loss scale has the room it needs")
        return
    else:
        yield evidence("loss scale", STRONG, f"the loss scale has little room, and was {scales[-1]:g}")
    if origin is not None and origin.phase != "backward":
        yield evidence(
            "origin", -DECISIVE, f"but the first bad value arises in the {origin.phase}, which it does not touch"
        )


def _open(precision: Precision) -> bool:
    """What would tell how much room there is was not given."""
    wants = (precision.scaler, precision.initial_scale, precision.min_scale, precision.scale_window)
    return precision.compute is None or (precision.compute == "float16" and None in wants)


def _unscaled(precision: Precision, severity: Severity) -> Finding:
    """Of adapters a note: their own gradients are float32, what reaches them is not."""
    text = "scale the loss: torch.amp.GradScaler with scale(loss).backward(), unscale_ before clipping, step and update"
    own = precision.requested_by == "torch"
    name = "dynamic-loss-scale"
    return Finding(
        severity=severity,
        message=f"the run computes in float16 and nothing scales the loss: gradients below {2.0**-24:.2g} become 0",
        where=Where.said(precision.source),
        evidence={"scaler": "none", "smallest_float16": 2.0**-24},
        remedy=Remedy(name=name, text=text) if own else Remedy(name=name, patch={"fp16": True}),
    )


def _finding(
    precision: Precision, key: str, text: str, change: str, value: float, severity: Severity = "warning"
) -> Finding:
    return Finding(
        severity=severity,  # many models train within little room; none needs it to be little
        message=text,
        where=Where(file=Where.said(precision.source).file, key=f"fp16.{key}"),
        evidence={
            "scaler": precision.scaler, "initial_scale": precision.initial_scale, "min_scale": precision.min_scale,
            "window": precision.scale_window, "hysteresis": precision.hysteresis,
        },
        remedy=Remedy(patch={f"fp16.{change}": value}),
    )  # fmt: skip
