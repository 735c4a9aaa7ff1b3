"""Compute a step that does not repeat once more, and take it.

## What it changes

Under `finitune run --mode heal` a step whose gradients were not finite, and that comes out finite and the same to the
last bit when it is run again on the same weights, batch and random numbers, is taken with the gradients of the second
run. Nothing else changes.

## When it is safe

It loses nothing of one event. It does not say which card, link or race it was: note the rank, and where it comes back
take the hardware out of the job. A step that comes out differently each time is left discarded.

## References

NVIDIA Megatron-LM, rerun state machine (transient, persistent, or of the program); Llama Team, The Llama 3 Herd of
Models (2024), table 5: how often hardware interrupts a run.
"""

from __future__ import annotations

safety = "advice"
