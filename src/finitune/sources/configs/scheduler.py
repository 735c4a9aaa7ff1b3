"""The card that a script asks its scheduler for: `#SBATCH --gpus-per-node=v100:8`, `srun --gres=gpu:a100:4`."""

from __future__ import annotations

import re

from finitune.sources.configs.format import Asked

_LINE = re.compile(r"^\s*(?:#SBATCH\b|srun\b|sbatch\b|salloc\b)([^\n]*)", re.MULTILINE)
_ASKED = re.compile(
    r"(?:--gres[=\s]\"?(?:\S{0,200},)?gpu:|--gpus(?:-per-(?:node|task|socket))?[=\s]|(?<!\S)-G\s*)"
    r"([A-Za-z][\w.-]*)(?::(\d+))?"
)


def asked(text: str) -> Asked | None:
    """The first card that is asked for by name; None where only a number is."""
    for line in _LINE.finditer(text):
        if found := _ASKED.search(line[1]):
            return Asked(
                name=found[1], count=int(found[2]) if found[2] else None, line=text.count("\n", 0, line.start(1)) + 1
            )
    return None
