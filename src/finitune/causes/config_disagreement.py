"""Two configurations of one run give one setting differently.

## What happens

A script says float16 and the DeepSpeed file it names says bfloat16; a launcher's file asks for one batch size and the
trainer for another. One of them wins, silently or by rule, and the run is not the one that was meant. The Trainer of
transformers refuses to start when its own values and those of DeepSpeed differ, and asks to correct them.

## How to tell

Read all files of a run together and compare setting by setting. Which one counts depends on the framework; finitune
lists the one that counts first.

## How to prove

Print the effective settings at the start of the run (the engine's configuration, the dtypes of the model).

## What to do

Give the setting in one place; write "auto" in the DeepSpeed file (match-settings).

## What does not help

Correcting the value in the file that does not count.

## References

LianjiaTech/BELLE#154 (fp16 true in DeepSpeed, false in the trainer; "auto" fixed it), transformers documentation
(DeepSpeed, shared configuration); shibing624/MedicalGPT#296 (a flag and a file that disagree).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from finitune.evidence import DECISIVE, STRONG, Tells, evidence
from finitune.facts import Disagreement, Hardware, Parallel, Training
from finitune.finding import Evidence, Finding, Remedy, Severity, Where

REFUSED = {
    "precision.compute": "{half}.enabled",
    "optimizer.lr": "optimizer.params.lr",
    "optimizer.eps": "optimizer.params.eps",
    "optimizer.betas": "optimizer.params.betas",
    "optimizer.weight_decay": "optimizer.params.weight_decay",
    "optimizer.warmup_steps": "scheduler.params.warmup_num_steps",
    "optimizer.clip": "gradient_clipping",
    "optimizer.batch": "train_micro_batch_size_per_gpu",
    "optimizer.accumulation": "gradient_accumulation_steps",
}
"""Settings that transformers compares with DeepSpeed's before it starts, and DeepSpeed's keys for them."""
BOTH = "precision.both"
"""Both half precisions are switched on in one place."""
TRAINERS = ("transformers", "trl", "llama-factory", "axolotl")
"""Frameworks whose loop is the Trainer of transformers."""

remedies = ["match-settings"]
public_incidents = 1
foresees = "disagreement"
tells: Tells = {
    "engine-config-mismatch": (DECISIVE, "the engine names two settings that contradict each other"),
}


def foresee(
    disagreements: Sequence[Disagreement],
    parallel: Parallel | None = None,
    training: Training | None = None,
    hardware: Hardware | None = None,
) -> Iterator[Finding]:
    engine = parallel.source if parallel and parallel.kind == "deepspeed" else None
    trainer = training is not None and training.framework in TRAINERS
    for one in disagreements:
        if one.key == BOTH:
            yield _both(one, hardware)
            continue
        place = _place_in(one, engine)
        refused = trainer and place is not None and one.key in REFUSED
        # An error where the Trainer refuses to start; else one value wins, and the run is not what one file says.
        severity: Severity = "error" if refused else "warning"
        said = ", ".join(f"{value} ({source})" for value, source in zip(one.values, one.sources, strict=True))
        after = "; the trainer refuses to start" if refused else f"; {one.values[0]} counts"
        half = "bf16" if "bfloat16" in one.values else "fp16"
        yield Finding(
            severity=severity,
            message=f"{one.key.partition('.')[2].replace('_', ' ')} is given differently: {said}{after}",
            where=Where(file=_file(place or one.sources[0]), key=_key(place or one.sources[0]) or one.key),
            evidence={
                "values": list(one.values),
                "sources": list(one.sources),
                **({"auto_key": REFUSED[one.key].format(half=half)} if place and one.key in REFUSED else {}),
            },
        )


def _both(one: Disagreement, hardware: Hardware | None) -> Finding:
    """float16 and bfloat16 in one file: no trainer takes both, and the card decides which of them is kept."""
    half, brain = (source.rpartition(": ")[2] for source in one.sources)
    kept = hardware is not None and not hardware.bfloat16
    return Finding(
        severity="error",
        message=f"{half} and {brain} are both on; the trainer refuses to start",
        where=Where(file=_file(one.sources[0]), key=half),
        evidence={"values": list(one.values), "sources": list(one.sources)},
        remedy=Remedy(patch={half: kept, brain: not kept}),
    )


def weigh(disagreements: Sequence[Disagreement], symptoms: set[str]) -> Iterator[Evidence]:
    if not disagreements:
        yield evidence("disagreement", -DECISIVE, "all configurations of the run agree")
        return
    seen = f"{len(disagreements)} settings are given differently in two places"
    if symptoms and not any(one.key == "precision.compute" for one in disagreements):
        yield evidence("disagreement", -STRONG, f"{seen}, but the dtype is not among them")
    else:
        yield evidence("disagreement", STRONG, seen)


def _place_in(one: Disagreement, engine: str | None) -> str | None:
    """The source in the DeepSpeed file, if there is one."""
    return next((source for source in one.sources if engine and _file(source) == _file(engine)), None)


def _key(source: str) -> str:
    """Its own key there, "" where the source is a whole file."""
    return source.rpartition(": ")[2] if ": " in source else ""


def _file(source: str) -> str:
    return source.rpartition(": ")[0] or source
