"""The name of a model -> its `model_type`, as far as a name tells."""

from __future__ import annotations

import re

FAMILIES = {
    r"qwen-?2": "qwen2", r"qwen-?3": "qwen3", r"qwen": "qwen2", r"chatglm": "chatglm", r"glm-?4": "glm",
    r"baichuan": "baichuan", r"gemma": "gemma", r"falcon": "falcon", r"phi-?\d": "phi", r"bloom": "bloom",
    r"minicpm": "minicpm", r"(^|[^a-z])(flan-|m|um|long-?|by)?t5": "t5", r"mi[sx]tral": "mistral",
    r"llama|llava|vicuna|alpaca": "llama", r"deepseek": "deepseek", r"internlm": "internlm", r"(^|[/ ])yi-": "llama",
    r"olmo": "olmo", r"gpt-?2": "gpt2", r"pythia|neox": "gpt_neox", r"(^|[/ ])opt-": "opt",
}  # fmt: skip
"""Pattern in a model's name -> `model_type`; the first that fits."""


def family_of(name: str) -> str | None:
    """The family, None for a name that says none."""
    return next((kind for pattern, kind in FAMILIES.items() if re.search(pattern, name.lower())), None)
