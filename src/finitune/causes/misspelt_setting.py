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
JSON and YAML unless told otherwise).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finitune.facts import UnknownKey
from finitune.finding import Evidence, Finding, Where

remedies = ["correct-key"]
public_incidents = 1


def foresee(unknown_keys: Sequence[UnknownKey]) -> Iterator[Finding]:
    for one in unknown_keys:
        near = f"; did you mean {' or '.join(one.near[:2])}?" if one.near else ""
        release = f" ({one.release})" if one.release else ""
        what = "is not a setting" if one.value is None else f"has no choice {one.value!r}"
        yield Finding(
            cause="misspelt-setting",
            # Without a neighbour it may well be a key of the user's own script.
            severity="warning" if one.near or one.value is not None else "info",
            message=f"{one.key} {what} that is known here{release}{near}",
            where=Where(file=one.file, key=one.key),
            evidence={"near": list(one.near), "value": one.value, "release": one.release},
        )


def weigh(unknown_keys: Sequence[UnknownKey], symptoms: set[str]) -> Iterator[Evidence]:
    if not unknown_keys:
        yield Evidence(text="every key of the configurations is known", bits=-8.0)
        return
    yield Evidence(text=f"{len(unknown_keys)} keys are not read by any release", bits=2.0)
    if symptoms:
        yield Evidence(text="but a setting that is not in force makes no bad number by itself", bits=-2.0)
