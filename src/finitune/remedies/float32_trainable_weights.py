"""Hold the weights that are trained, and the optimizer's state, in float32; compute in half precision as before.

## What it changes

The dtype in which the model is loaded, or of the adapter alone; autocast still multiplies in half precision. Full
fine-tuning needs 4 more bytes per weight for the copy that is updated and as many for each state of the optimizer; an
adapter is small, so there it costs nothing to speak of. DeepSpeed's fp16 and bf16 modes keep such a copy by
themselves.

## When it is safe

Always, where memory allows. Where it does not: an adapter, ZeRO or FSDP over more cards, or stochastic-rounding.

## References

huggingface/transformers#23165, PEFT's page on troubleshooting (trainable weights never in float16 under automatic
mixed precision), meta-pytorch/torchtune#2254.
"""

from __future__ import annotations

from finitune.facts import Adapter, Optimizer, Precision
from finitune.finding import Remedy

safety = "safe"


def propose(
    optimizer: Optimizer | None = None, adapter: Adapter | None = None, precision: Precision | None = None
) -> Remedy:
    if precision is None or precision.parameters is None:
        return Remedy()  # nobody saw the dtype of the weights
    trained_beside = (adapter is not None and adapter.kind not in (None, "none")) or (optimizer and optimizer.lora)
    if adapter is not None and adapter.trainable:  # PEFT casts adapters, not what is trained in full beside them
        trained_beside = False
    if (
        precision.requested_by == "lightning" and precision.casts_module
    ):  # autocast over float32 weights, in its own word
        mixed = {"float16": "16-mixed", "bfloat16": "bf16-mixed"}.get(precision.compute or "")
        return Remedy(patch={"trainer.precision": mixed}) if mixed else Remedy()
    patch = {"autocast_adapter_dtype": True} if trained_beside else {"dtype": "float32"}
    return Remedy(patch=patch)
