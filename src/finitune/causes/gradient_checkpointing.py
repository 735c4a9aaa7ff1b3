"""Checkpointed layers get no gradient, because nothing that enters them asks for one.

## What happens

Reentrant checkpointing runs a block without recording it and records it again in the backward, which it only enters if
one of its inputs requires a gradient. With a frozen embedding (any adapter, or frozen lower layers) the inputs of the
first block do not: the adapter inside gets no gradient, and trains nothing. On Apple's MPS backend reentrant
checkpointing has given wrong numbers besides.

## How to tell

`use_reentrant` true together with an adapter. The warning "None of the inputs have requires_grad=True. Gradients will
be None". Parameters with `grad` None after the first backward; a loss that does not move while the gradient norm is 0.

## How to prove

Take one step without checkpointing: the missing gradients are there.

## What to do

`use_reentrant: false` (change-settings), or `model.enable_input_require_grads()`, which TRL and PEFT's preparation for
quantised training call by themselves.

## What does not help

A higher learning rate: zero times anything. Unfreezing the embedding only to get a gradient.

## References

huggingface/transformers#42489 and #42494 (frozen embedding, no gradient), instructlab/instructlab#3533 (MPS with
reentrant checkpointing), PyTorch documentation (torch.utils.checkpoint, use_reentrant).
"""

from __future__ import annotations

from collections.abc import Iterator

from finitune.chapter import Needs, needs
from finitune.evidence import DECISIVE, HINT, STRONG, Tells, evidence
from finitune.facts import Adapter, Hardware, Training
from finitune.finding import Evidence, Finding, Remedy, Severity, Where

remedies = ["equivalent-setting"]
public_incidents = 5
foresees = "checkpointing"

tells: Tells = {
    "checkpoint-without-gradient": (DECISIVE, "PyTorch says that no gradient passes"),
    "no-gradient-path": (DECISIVE, "PyTorch says that no gradient passes"),
    "reentrant": (STRONG, "a re-entrant checkpoint needs an input that requires a gradient"),
    "checkpointing": (STRONG, "activations are recomputed in the backward"),
    "gradients-missing": (STRONG, "a checkpoint may drop gradients without an error"),
    "computes-float16": (-HINT, "an overflow of float16 is more frequent"),
    "zero-loss-zero-gradient": (STRONG, "a checkpoint dropped the gradient"),
    "loss-repeats": (HINT, "weights without a gradient do not move"),
    "no-inf-checks": (STRONG, "no parameter has a gradient"),
    "gradient-gone": (STRONG, "a checkpoint may let no gradient pass"),
}


def foresee(
    training: Training, adapter: Adapter | None = None, hardware: Hardware | None = None
) -> Iterator[Finding | Needs]:
    frozen = adapter is not None and adapter.kind not in (None, "none")
    apple = hardware is not None and "MPS" in hardware.name
    if not training.gradient_checkpointing or training.reentrant is not True:
        return
    if not (frozen or apple):
        yield from needs(adapter=adapter, hardware=hardware)
        return
    # Trainers that know adapters make the inputs require a gradient; on MPS nobody makes the numbers right.
    severity: Severity = "warning" if apple else "info"
    why = (
        "on MPS it has given wrong numbers" if apple else "with an adapter its inputs require no gradient by themselves"
    )
    yield Finding(
        severity=severity,
        message=f"gradient checkpointing is reentrant; {why}",
        where=Where(file=training.source, key="gradient_checkpointing_kwargs.use_reentrant"),
        evidence={"reentrant": True, "adapter": adapter.kind if adapter else None},
        remedy=Remedy(patch={"gradient_checkpointing_kwargs": {"use_reentrant": False}}),
    )


def weigh(
    symptoms: set[str], training: Training | None = None, adapter: Adapter | None = None,
) -> Iterator[Evidence]:  # fmt: skip
    if "checkpoint-without-gradient" in symptoms:
        yield evidence("checkpointing", DECISIVE, "no input of a checkpointed segment requires a gradient")
        yield evidence("gradients", STRONG, "trained tensors have no gradient in the same step")
        return
    if training is None or training.gradient_checkpointing is None:
        return
    if not training.gradient_checkpointing:
        yield evidence("checkpointing", -DECISIVE, "activations are not checkpointed")
    elif any(symptom.startswith("nonfinite") for symptom in symptoms):
        yield evidence("loss", -STRONG, "a gradient that is missing is not a bad number")
    elif training.reentrant and adapter is not None and adapter.kind not in (None, "none"):
        yield evidence(
            "checkpointing", STRONG, "re-entrant checkpoints over a frozen base pass no gradient on by themselves"
        )
