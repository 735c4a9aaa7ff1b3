"""Use attention that keeps the query-key product in float32.

## What it changes

The attention kernel. Eager attention stores the raw product of queries and keys in the dtype of the run before it
divides by the square root of the width; fused kernels (sdpa, FlashAttention) hold it in float32 and store only the
result. Speed and memory improve, results change in the last digits.

## When it is safe

Always, where the model supports it. It helps when the product is what overflows, and not when queries or keys
themselves, a feed-forward layer or the residual stream do.

## References

QwenLM/Qwen3#910 and #670, huggingface/transformers#33317 (perplexity NaN in eager float16, 7.14 with sdpa).
"""

from __future__ import annotations

import re

from finitune.facts import Attention
from finitune.finding import Origin, Remedy, Where

safety = "safe"

ATTENTION = re.compile(r"att(e)?n", re.IGNORECASE)
PRODUCT = re.compile(r"aten\.(bmm|baddbmm|matmul|mul|div)$")


def propose(
    origin: Origin | None = None, where: Where | None = None, attention: Attention | None = None
) -> Remedy | None:
    """For a product inside eager attention, or for a module of attention where one is foretold."""
    if attention is not None and attention.implementation != "eager":
        return None
    module = (origin.module or "").rpartition(".")[2] if origin else ""
    in_product = origin is not None and ATTENTION.search(module) and PRODUCT.match(origin.op)
    foretold = where is not None and ATTENTION.search((where.module or "").rpartition(".")[2])
    if not (in_product or foretold):
        return None
    return Remedy(patch={"attn_implementation": "sdpa"})
