"""Every kind of run by its name: what is trained, and the causes that are right."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from _faults import FAULTS
from _healthy import HEALTHY
from _run import Run
from _world import World, keep


def world(run: Run, directory: Path) -> World:
    """What is trained in this run. The model of a broken one is kept in `directory`, as it was before."""
    own = (FAULTS[run.kind][0] if run.kind in FAULTS else HEALTHY[run.kind])(run, directory)
    if run.kind in FAULTS and int(os.environ.get("RANK", "0")) == 0:
        keep(own.model, directory)
    return own


def truth(run: Run) -> Sequence[str]:
    return FAULTS[run.kind][1] if run.kind in FAULTS else ()
