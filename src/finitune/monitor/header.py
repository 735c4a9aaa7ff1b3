"""The header of a recording: the facts of the run, as its first step shows them."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch

from finitune.monitor.capture.step import Capture
from finitune.monitor.optimizers import Watched
from finitune.monitor.run import Run


def header_written(run: Run, watched: Watched, capture: Capture) -> dict[str, Any]:
    """The facts as JSON, which are in the recording now."""
    try:
        from finitune.facts_json import facts_as_json
        from finitune.monitor.probes.live_facts import run_facts

        facts = facts_as_json(run_facts(watched.model, watched.optimizer(), _computed_in(capture)))
    except ImportError:  # the user's environment may hold torch alone
        facts = {}
    run.recorder.header(facts, mode=run.mode, world=run.world, command=sys.argv, started=time.time())
    return facts


def facts_of_another(watched: Watched, capture: Capture) -> dict[str, Any]:
    """Precision and optimizer, as JSON, where the header describes another one: of two models, or of a phase before."""
    try:
        from finitune.facts_json import facts_as_json
        from finitune.monitor.probes.live_facts import optimizer_facts

        return facts_as_json(optimizer_facts(watched.model, watched.optimizer(), _computed_in(capture)))
    except Exception:  # torch alone, an optimizer of a kind that cannot be read
        return {}


def _computed_in(capture: Capture) -> torch.dtype | None:
    """The autocast dtype of the first forward."""
    micro = next((m for m in capture.micro_steps if m.calls), None)
    return micro.calls[0].autocast.dtype if micro else None
