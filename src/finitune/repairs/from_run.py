"""`finitune repair --from RUN_DIR`: what healing did to a run, as the user's files would have it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from finitune.chapter import remedies
from finitune.finding import Remedy, UnreadableInput
from finitune.recording import Recording
from finitune.repairs.configs import repair_proposed
from finitune.repairs.result import RepairResult
from finitune.reports.sentences import do, remedy_note, several
from finitune.sources.configs.runs import Config


@dataclass(frozen=True, slots=True, kw_only=True)
class Healed:
    """One remedy that a run was given; `undone` where it did not hold. `places` are samples, where it is about some."""

    remedy: Remedy
    cause: str
    steps: Sequence[int]
    undone: bool
    places: Sequence[str] = ()


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
    done = healed(recording)
    held = [one for one in done if not one.undone]
    if not held:
        why = "every remedy was undone" if done else "nothing was healed in it (expected a run in mode heal)"
        raise UnreadableInput(f"{run_dir}: {why}")
    result = repair_proposed([one.remedy for one in held if one.remedy.patch], configs, model, apply=apply)
    taken = {change.remedy for change in result.changes}
    left = [_advice(one) for one in held if one.remedy.name not in taken]
    return RepairResult(
        repair=f"from {run_dir}", output=result.output, seed=0, changes=result.changes, diff=result.diff,
        written=result.written, not_applied=result.not_applied, undo=result.undo, advice=left,
    )  # fmt: skip


def healed(recording: Recording) -> list[Healed]:
    """What was done to the run, each different change once, in the order in which it was done first."""
    events = [one for one in recording.events("remedy") if one.get("state") != "advice" and one.get("remedy")]
    states: dict[tuple[Any, Any], str] = {}
    for one in events:
        states[one.get("incident"), one["remedy"]] = str(one.get("state"))
    found: dict[tuple[str, str, bool], Healed] = {}
    for one in events:
        if one.get("state") not in ("applied", "for its step"):
            continue
        remedy = _remedy(one)
        undone = states[one.get("incident"), one["remedy"]] == "undone"
        said: Any = one.get("places")
        places = [str(place) for place in cast("list[Any]", said)] if isinstance(said, list) else []
        before = found.get((remedy.name, repr(remedy.patch), undone))
        found[remedy.name, repr(remedy.patch), undone] = Healed(
            remedy=remedy, cause=str(one.get("cause") or ""), undone=undone,
            steps=[*(before.steps if before else ()), one["step"]],
            places=[*(before.places if before else ()), *places],
        )  # fmt: skip
    return list(found.values())


def _remedy(event: Mapping[str, Any]) -> Remedy:
    name, patch, command = str(event["remedy"]), event.get("patch"), event.get("command")
    known = remedies().get(name)
    return Remedy(
        name=name, safety=known.safety if known else "advice", command=command if isinstance(command, str) else None,
        patch=cast("Mapping[str, Any]", patch) if isinstance(patch, Mapping) else None,
    )  # fmt: skip


def _advice(one: Healed) -> str:
    where = f": {'; '.join(one.places)}" if one.places else ""
    return f"{do(one.remedy)}{where}   ({remedy_note(one.remedy)}; {one.cause}, {several('step', one.steps)})"
