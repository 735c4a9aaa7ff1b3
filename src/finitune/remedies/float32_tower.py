"""Keep the encoder of images or sound in float32 inside a float16 run.

## What it changes

The whole tower computes in float32, its inputs cast up and its last hidden state cast down. A tower is small beside the
language model (400 million of 8 billion parameters in MiniCPM-V 2.6), so memory and time grow by a few per cent.

## When it is safe

Where the tower ends with a norm, as SigLIP and CLIP do: what it hands on is then within the range of float16 however
large its inner values are. One module of it in float32 is not enough, because its output is cast to float16 again.

## References

unslothai/unsloth-zoo#787 (the vision MLP of Qwen3-VL in float32, with a table of what helped and what did not).
"""

from __future__ import annotations

from finitune.finding import Origin, Remedy, Where
from finitune.naming import tower_of

safety = "advice"
arm = "module-float32"


def propose(origin: Origin | None = None, where: Where | None = None) -> Remedy | None:
    name = (origin.module if origin else None) or (where.tensor if where else None) or ""
    tower = tower_of(name)
    if tower is None:
        return None
    # Adapters wrap the model; its own configuration knows the names inside.
    return Remedy(patch={"float32_modules": [tower.rpartition("model.")[2]]})
