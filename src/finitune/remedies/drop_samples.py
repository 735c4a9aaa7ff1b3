"""Leave the samples that spoil a step out of it, and out of the data.

## What it changes

The records that were named are removed from the data, or skipped by the loader; all others stay as they are. In a run
under `finitune run --mode heal` the step is taken without them while the run goes on: its gradient is that of the other
samples of the batch.

## When it is safe

When the samples are few and their values wrong: an overflowed feature, NaN in a cache, an empty target. Where good
samples do the same in turn, the model or its precision is at fault.

## References

espnet/espnet#2771 (empty targets), huggingface/diffusers#7563 (NaN in cached latents); Zeller and Hildebrandt,
Simplifying and isolating failure-inducing input (2002), for the search among the samples.
"""

from __future__ import annotations

from finitune.finding import Origin, Remedy

safety = "advice"


def propose(origin: Origin | None = None) -> Remedy | None:
    """No command: where a sample lies in the user's data is not known here. A bad weight is no matter of samples."""
    return None if origin is not None and origin.phase in ("parameter", "optimizer") else Remedy()
