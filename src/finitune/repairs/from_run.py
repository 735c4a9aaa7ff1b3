"""`finitune repair --from RUN_DIR`: what healing did to a run, as the user's files would have it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from finitune.chapter import remedies
from finitune.finding import Remedy, UnreadableInput
from finitune.recording import Recording
from finitune.repairs.configs import repair_proposed
from finitune.repairs.result import Healed, RepairResult
from finitune.sources.configs.runs import Config


def repair_from_run(
    run_dir: str | Path, configs: Sequence[Config], model: str | Path | None, *, apply: bool
) -> RepairResult:
    """The remedies that held, patched into the files that take them; the others as lines to follow by hand.

    Without files all of them are lines. Raises UnreadableInput where nothing was recorded, or nothing was healed.
    """
    try:
        recording = Recording.load(run_dir)
    except FileNotFoundError as error:
        raise UnreadableInput(str(error)) from None
    held = healed(recording)
    if not held:
        tried = any(one.get("remedy") for one in recording.events("remedy"))
        why = "every remedy was undone" if tried else "nothing was healed in it (expected a run in mode heal)"
        raise UnreadableInput(f"{run_dir}: {why}")
    result = repair_proposed([one.remedy for one in held if one.remedy.patch], configs, model, apply=apply)
    taken = {change.remedy for change in result.changes}
    left = [one for one in held if one.remedy.name not in taken]
    return dataclasses.replace(result, repair=f"from {run_dir}", by_hand=left)


def healed(recording: Recording) -> list[Healed]:
    """What was done to the run and not undone, each different change once, in the order in which it was done first."""
    events = [one for one in recording.events("remedy") if one.get("remedy")]
    ends = {_change(one): one.get("state") for one in events}
    found: dict[tuple[str, str], Healed] = {}
    for one in events:
        if ends[_change(one)] == "undone" or one.get("state") not in ("applied", "for its step"):
            continue
        remedy, said = _remedy(one), one.get("places")
        if one.get("replaces"):  # it changed what the same remedy had set
            found = {key: value for key, value in found.items() if key[0] != remedy.name}
        places = [str(place) for place in cast("list[Any]", said)] if isinstance(said, list) else []
        before = found.get((remedy.name, repr(remedy.patch)))
        found[remedy.name, repr(remedy.patch)] = Healed(
            remedy=remedy, cause=str(one.get("cause") or ""),
            steps=[*(before.steps if before else ()), one["step"]],
            places=[*(before.places if before else ()), *places],
        )  # fmt: skip
    return [*found.values(), *_to_resume(recording, events)]


def _to_resume(recording: Recording, done: Sequence[Mapping[str, Any]]) -> list[Healed]:
    """Checkpoints to go back to by hand, where the run did not go back by itself since."""
    back = max((one["step"] for one in done if one.get("action") == "rolled-back"), default=0)
    found: dict[str, Healed] = {}
    for one in recording.events("remedy"):
        clean = one.get("resume_from")
        if isinstance(clean, dict) and one["step"] > back:
            known = cast("dict[str, Any]", clean)
            text = f"resume from {known.get('path')}, the last checkpoint whose weights are finite"
            remedy = Remedy(name="rollback-and-skip", safety="advice", text=f"{text} (step {known.get('step')})")
            found[text] = Healed(remedy=remedy, cause=str(one.get("cause") or ""), steps=[one["step"]])
    return list(found.values())


def _change(event: Mapping[str, Any]) -> tuple[Any, ...]:
    """What one change is known by, from when it is applied until it is kept or undone."""
    return event.get("incident"), event["remedy"], repr(event.get("targets"))


def _remedy(event: Mapping[str, Any]) -> Remedy:
    name, patch, command = str(event["remedy"]), event.get("patch"), event.get("command")
    known = remedies().get(name)
    return Remedy(
        name=name, safety=known.safety if known else "advice", command=command if isinstance(command, str) else None,
        patch=cast("Mapping[str, Any]", patch) if isinstance(patch, Mapping) else None,
    )  # fmt: skip
