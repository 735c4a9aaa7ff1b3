"""Keep the modules that overflow in float32, and only those.

## What it changes

The named modules compute in float32 inside a float16 run; their inputs are cast up and their outputs down. A few of
a hundred modules cost little memory and time.

## When it is safe

When what leaves the module is within the range of float16 again. A residual stream that is itself above 65504 needs
float32 from the first such module to the last; `finitune diagnose RUN_DIR --prove` tries the module of the origin and
a sibling on the captured step.

## References

huggingface/transformers#5651 (T5's wo in float32), huggingface/transformers#28673 (attention of Phi-2),
unslothai/unsloth-zoo#600 (the decoder's feed-forward of Gemma).
"""

from __future__ import annotations

import re

from finitune.finding import Origin, Remedy, Where

safety = "advice"
arm = "module-float32"


def propose(origin: Origin | None = None, where: Where | None = None) -> Remedy:
    tensor = where.tensor.rpartition(".")[0] if where and where.tensor else None
    module = (origin.module if origin else None) or (where.module if where else None) or tensor
    if not module:
        return Remedy()
    written = re.sub(r"\.(\d+)(?=\.|$)", r"[\1]", module)
    return Remedy(patch={"float32_modules": [module]}, text=f"in a program: model.{written}.float(), inputs cast up")
