"""A recording -> its incidents, each with its ranked causes.

Nothing is run here. Replay wrote what it found into the recording, so the same diagnosis comes out while the run
goes on, on another machine, and without torch.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from finitune.diagnosis import crashes
from finitune.diagnosis.next_question import Question, next_check
from finitune.diagnosis.observed_settings import of_facts
from finitune.diagnosis.ranking import SHOWN, experiments_of, rank
from finitune.evidence import STRONG
from finitune.facts import Facts
from finitune.facts_json import facts_from_json, revived, types_of
from finitune.finding import Action, Diagnosis, Incident, NotChecked, Origin, RankedCause, number
from finitune.flipped_bits import flipped, in_words
from finitune.recorded_rank import OF_ONE_OPTIMIZER
from finitune.recording import Recording
from finitune.series import Signals

BROKEN_OFF = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals by which somebody ends a run."""
MOST_RANKED = 500
"""Incidents whose causes are ranked, each in a few milliseconds; of later ones it is listed what was recorded."""

OF_DYNAMICS = ("loss", "grad_norm", "update_ratio", "first_update_ratio", "moved", "clip_factor")
"""Signals of how training goes, which lead to no crash but one of numbers."""
OF_A_LOSS = ("divergence", "loss-spike")
"""Symptoms of finite losses that a single weight makes as large."""
REPEATABLE = ("nonfinite-loss", "nonfinite-gradient", "loss-scale-collapse")
"""Symptoms that one forward and backward show again, in another process too."""


def diagnose(run_dir: str | Path) -> Diagnosis:
    """Every incident in the recording at `run_dir`, each with its ranked causes.

    Raises FileNotFoundError when there is no recording, UnreadableInput for one that a later finitune wrote.
    """
    recording = Recording.load(run_dir)
    facts, ranks = recording.facts, {rank.rank: rank for rank in recording.ranks}
    following = _by_incident(recording)
    events = sorted(recording.events("incident"), key=_when)
    incidents = [
        incident_of(
            *_where_it_was_made(event, following, ranks), facts, ranks[event["rank"]].signals_of(event),
            recording.directory, ranked=place < MOST_RANKED,
        )
        for place, event in enumerate(events)
    ]  # fmt: skip
    problems = list(recording.problems)
    if len(events) > MOST_RANKED:
        problems.append(f"{len(events)} incidents: the causes of the first {MOST_RANKED} were ranked, no later ones")
    failed = recording.events("broken")
    for one in failed:
        place = "".join(f", {frame}" for frame in one.get("frames", ())[-1:])
        problems.append(f"finitune itself failed in step {one['step']}, and saw less of it ({one['text']}{place})")
    steps = max(max((rank.signals["skipped"].last_step for rank in recording.ranks), default=0), 0)
    ended = _unexplained_end(recording, steps)
    return Diagnosis(
        incidents=[*incidents, *([ended] if ended is not None else [])],
        not_checked=[NotChecked(input="recording", why=why) for why in problems],
        steps=steps,
    )


def _when(event: Mapping[str, Any]) -> tuple[bool, int, float]:
    """Step by step; then crashes, as they came: where one rank has died, others end in an error of their connection."""
    crashed = event.get("symptom") == "crash"
    return crashed, 0 if crashed else event["step"], number(event.get("time")) or 0.0


def _unexplained_end(recording: Recording, steps: int) -> Incident | None:
    """A run that failed, or broke off, without a word why: nothing that was recorded explains it."""
    if recording.events("stop", "watched") or any(n.get("note") == "interrupted" for n in recording.events("note")):
        return None
    if any(event.get("level", "incident") == "incident" for event in recording.events("incident")):
        return None
    exits = recording.events("exit")
    code, signal = (exits[-1].get("code"), exits[-1].get("signal")) if exits else (None, None)
    if signal in BROKEN_OFF or not code:
        return None
    return Incident(
        step=steps, rank=0, symptom="unexplained-exit", reproducible=None, origin=None, causes=[], action="none",
        not_located="no step is known to be bad", level="suspicion", confirm="what it printed last",
        message=f"the command ended with exit code {code}, and no exception was seen",
    )  # fmt: skip


def inputs_of(
    facts: Facts, event: Mapping[str, Any], origin: Mapping[str, Any] | None, signals: Signals
) -> dict[str, Any]:
    """What `weigh` may read about one incident, under the names that chapters use."""
    step = event["step"]
    before = {name: series.until(step) for name, series in signals.items() if series}
    if event.get("beside"):
        before = {name: series for name, series in before.items() if name not in OF_ONE_OPTIMIZER}
    return {
        **facts.by_name(),
        **before,
        "signals": before,
        "symptoms": {event.get("symptom")},
        "incident": event,
        "origin": _origin(origin.get("origin")) if origin else None,
        "repeats": origin.get("repeats") if origin else None,
    }


def of_same_incident(recording: Recording, event: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What was recorded of the incident that `event` opened, after it."""
    return _by_incident(recording).get(_key(event), [])


def _where_it_was_made(
    event: Mapping[str, Any],
    following: Mapping[tuple[int, int | None], Sequence[Mapping[str, Any]]],
    ranks: Iterable[int],
) -> tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]:
    """The event and what belongs to it; where its rank knows of no operator, and another that saw the next step live
    does, as that rank's.
    """
    own = following.get(_key(event), [])
    if event.get("level") != "incident" or any(map(_is_operator, own)):
        return event, own
    others = (one for rank in ranks if rank != event["rank"] for one in following.get((rank, event.get("id")), []))
    made = next((one for one in others if one["step"] == event["step"] and _is_operator(one)), None)
    return (event, own) if made is None else ({**event, "rank": made["rank"]}, [*own, made])


def _is_operator(event: Mapping[str, Any]) -> bool:
    origin = _origin(event.get("origin")) if event["event"] == "origin" else None
    return origin is not None and origin.is_operator


def _by_incident(recording: Recording) -> dict[tuple[int, int | None], list[Mapping[str, Any]]]:
    found: dict[tuple[int, int | None], list[Mapping[str, Any]]] = {}
    for event in recording.events("origin", "arm", "action", "stop", "remedy"):
        found.setdefault((event["rank"], event.get("incident")), []).append(event)
    return found


def _key(event: Mapping[str, Any]) -> tuple[int, int | None]:
    return event["rank"], event.get("id")


def incident_of(
    event: Mapping[str, Any],
    following: Sequence[Mapping[str, Any]],
    run_facts: Facts,
    signals: Signals,
    run_dir: Path,
    *,
    ranked: bool = True,
    contenders: int | Literal["all"] | None = None,
) -> Incident:
    """The incident that `event` opened, from the events that belong to it; live and from a recording alike.

    Where it is not to be `ranked`, its causes are left out. With `contenders` its causes are those to put to the test:
    so many of the first that more speaks for than against, or all of the book; where there are none of a step that is
    bad again, or the loss has climbed and no operator is at fault, two more that something strong speaks for, whatever
    speaks against them.
    """
    origins = [e for e in following if e["event"] == "origin"]  # a later one was found when the step was run again
    origin = next((e for e in reversed(origins) if e.get("origin")), origins[0] if origins else None)
    own = event.get("facts")
    facts = (facts_from_json(own) if isinstance(own, Mapping) and ranked else Facts()).over(run_facts)  # pyright: ignore[reportUnknownArgumentType]
    crashed = event.get("symptom") == "crash"
    of_numbers = not crashed or bool(origin and origin.get("origin")) or crashes.is_of_numbers(event)
    if not of_numbers:
        signals = {name: series for name, series in signals.items() if name not in OF_DYNAMICS}
    inputs = inputs_of(facts, event, origin, signals)
    if crashed:
        inputs["observations"] = crashes.observed(event, facts.model)
    if not of_numbers:
        del inputs["optimizer"]
    arms = [e for e in following if e["event"] == "arm"]
    weighed = rank(inputs, arms) if ranked else []
    shown = [cause for cause in weighed if cause.proved or cause.bits > 0][:SHOWN]
    if contenders is not None:
        shown = weighed if contenders == "all" else shown[:contenders]
        comes_again = bool(origin and origin.get("repeats"))  # else an experiment shows nothing
        if (comes_again and not shown) or event.get("symptom") == "divergence":
            supported = (one for one in weighed if any(seen.bits >= STRONG for seen in one.evidence))
            shown += [one for one in supported if one not in shown][:2]
    stopped = any(e["event"] == "stop" for e in following)
    actions = [e for e in following if e["event"] == "action"]
    return Incident(
        step=event["step"],
        rank=event.get("rank", 0),
        symptom=str(event.get("symptom")),
        reproducible=origin.get("repeats") if origin else None,
        bit_for_bit=origin.get("bit_for_bit") if origin else None,
        origin=_as_shown(event, origin) or _flipped(event, facts),
        causes=shown,
        action="stopped" if stopped else _done(following) or event.get("action", "none"),
        not_located=origin.get("why_not") if origin else "the recording ends before the step was run again",
        last_good=event.get("last_good"),
        last_step=actions[-1]["step"] if actions else event["step"],
        message=str(event.get("text", "")),
        level="suspicion" if event.get("level") == "suspicion" else "incident",
        confirm=str(event.get("confirm") or ""),
        seen=crashes.seen(event),
        next_check=next_check(
            weighed,
            {*of_facts(facts), str(event.get("symptom"))},
            facts.by_name(),
            _experiments_left(shown, event, origin, arms, run_dir),
        )
        if ranked
        else "",
    )


def _done(following: Sequence[Mapping[str, Any]]) -> Action | None:
    """What the remedy did that was applied last and is not undone."""
    states = {e.get("remedy"): e for e in following if e["event"] == "remedy" and e.get("state") != "advice"}
    done = [e.get("action") for e in states.values() if e.get("state") != "undone"]
    return next((action for action in get_args(Action) if done and action == done[-1]), None)


def _experiments_left(
    shown: Sequence[RankedCause],
    event: Mapping[str, Any],
    origin: Mapping[str, Any] | None,
    ran: Sequence[Mapping[str, Any]],
    run_dir: Path,
) -> list[Question]:
    """Experiments of the leading causes that were not put to the test, where there is a step to run again."""
    repeats = event.get("symptom") in REPEATABLE and (origin or {}).get("repeats") is not False
    if not (repeats and event.get("runs_elsewhere")):
        return []
    tried = {e.get("cause") for e in ran}  # of these the others do not apply to the step
    arms = [e.arm.partition("=")[0] for c in shown if c.cause not in tried for e in experiments_of(c.cause)]
    how = f"finitune diagnose {shlex.quote(str(run_dir))} --prove"
    return [
        Question(name=arm, ask=f"run the captured step again under {arm}", how=how, answers=((f"arm:{arm}",),))
        for arm in dict.fromkeys(arms)
    ]


def _as_shown(event: Mapping[str, Any], origin: Mapping[str, Any] | None) -> Origin | None:
    """What the loop has computed without a gradient, as an advantage, is no input to users but a part of the forward;
    what a data set computes is one.
    """
    own = _origin(origin.get("origin")) if origin else None
    computed = own is not None and own.phase == "input" and own.op.startswith("aten.")
    return replace(own, phase="forward") if own and computed and event.get("of_data_set") is not True else own


def _flipped(event: Mapping[str, Any], facts: Facts) -> Origin | None:
    """Of finite numbers the weight that one bit in memory has changed."""
    found = flipped(facts.weights) if event.get("symptom") in OF_A_LOSS and event["step"] > 1 else None
    if found is None:
        return None
    scan, before = found
    return Origin(
        module=scan.name.rpartition(".")[0], op="parameter", phase="parameter", dtype=scan.dtype, tensor=scan.name,
        shape=scan.shape, values=f"{in_words(scan)}; with one bit the other way {before:.3g}",
    )  # fmt: skip


def _origin(data: Any) -> Origin | None:
    if not isinstance(data, Mapping):
        return None
    types = types_of(Origin)
    try:
        given: dict[str, Any] = {k: v if v is None else revived(types[k], v) for k, v in data.items() if k in types}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        return Origin(**given)
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
        return None
