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
    micro = next((m for m in capture.micro_steps if m.calls), None)
    dtype: torch.dtype | None = micro.calls[0].autocast.dtype if micro else None
    try:
        from finitune.facts_json import facts_as_json
        from finitune.monitor.probes.live_facts import run_facts

        facts = facts_as_json(run_facts(watched.model, watched.optimizer(), dtype))
    except ImportError:  # the user's environment may hold torch alone
        facts = {}
    run.recorder.header(facts, mode=run.mode, world=run.world, command=sys.argv, started=time.time())
    return facts
