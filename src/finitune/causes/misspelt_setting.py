"""A key or value that no release of the framework knows, so the setting that was meant is not in force.

## What happens

A letter is missing, a key was renamed between releases, or it belongs to another framework. Some readers refuse it,
many ignore it without a word, and the run goes on with the default: no clipping, another precision, another batch
size.

## How to tell

Compare every key with the fields of the framework; the nearest one is usually what was meant.

## How to prove

Print the effective settings at the start of the run and look for the one that was meant.

## What to do

Spell it as the framework reads it (correct-key).

## What does not help

Raising the value of a setting that nobody reads.

## References

shibing624/MedicalGPT#296 (`--bp16`, found by the maintainer); transformers, HfArgumentParser (refuses unknown keys in
JSON and YAML unless configured otherwise).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from finitune.evidence import DECISIVE, STRONG, evidence
from finitune.facts import UnknownKey
from finitune.finding import Evidence, Finding, Where

remedies = ["correct-key"]
public_incidents = 1
foresees = "unknown settings"


LISTED = 8
"""So many keys are named in one sentence."""


def foresee(unknown_keys: Sequence[UnknownKey]) -> Iterator[Finding]:
    yield from _likely(one for one in unknown_keys if one.near or one.value is not None)
    others: dict[tuple[str, str | None], list[str]] = {}
    for one in unknown_keys:
        if not one.near and one.value is None:
            others.setdefault((one.file, one.release), []).append(one.key)
    yield from (_others(file, release, keys) for (file, release), keys in others.items())


def _likely(unknown_keys: Iterable[UnknownKey]) -> Iterator[Finding]:
    for one in unknown_keys:
        near = f"; did you mean {' or '.join(one.near[:2])}?" if one.near else ""
        release = f" ({one.release})" if one.release else ""
        what = "is not a setting" if one.value is None else f"has no choice {one.value!r}"
        yield Finding(
            severity="warning",
            message=f"{one.key} {what} that is known here{release}{near}",
            where=Where(file=one.file, key=one.key),
            evidence={"near": list(one.near), "value": one.value, "release": one.release},
        )


def _others(file: str, release: str | None, keys: Sequence[str]) -> Finding:
    """Keys without a neighbour are nothing that was meant otherwise; they may be those of another release or plugin."""
    named = ", ".join(keys[:LISTED]) + (f" and {len(keys) - LISTED} more" if len(keys) > LISTED else "")
    known = f" ({release})" if release else ""
    verb = "is no setting" if len(keys) == 1 else "are no settings"
    return Finding(
        severity="info",
        message=f"{named} {verb} that {'is' if len(keys) == 1 else 'are'} known here{known}",
        where=Where(file=file, key=keys[0]),
        evidence={"keys": list(keys), "release": release},
    )


def weigh(unknown_keys: Sequence[UnknownKey], symptoms: set[str]) -> Iterator[Evidence]:
    if not unknown_keys:
        yield evidence("unknown settings", -DECISIVE, "every key of the configurations is known")
        return
    if symptoms:
        yield evidence("loss", -STRONG, "a setting that is not in force makes no bad number by itself")
    else:
        yield evidence("unknown settings", STRONG, f"{len(unknown_keys)} keys are not read by any release")
