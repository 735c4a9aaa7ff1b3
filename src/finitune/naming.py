"""How far an operator and its values reach, by arithmetic on weights alone, and which modules see or hear."""

from __future__ import annotations

import re
from dataclasses import dataclass

TOWER = re.compile(r"vpm|apm|visual|vit|(vision|image|img|audio|speech)_?(tower|model|encoder|backbone)?\d?")
"""Names of the part of a model that encodes images or sound, as architectures spell them."""

WIDE = ("t5", "mt5", "umt5", "longt5", "gemma")
"""`model_type` prefixes whose every release leaves float16 with ordinary text, before any update; the reports
stand in the chapters fp16-activation-overflow and float32-modules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """The largest value that row `row` of a matrix can give to what the layer norm before it puts out."""

    tensor: str
    row: int
    value: float
    file: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationPeak:
    """The largest magnitude of one stored value of a module's forward pass, and the token that brings it there."""

    module: str
    what: str
    """"query . key" (stored by eager attention alone), "gate * up", "output" or "residual"."""
    token: int
    value: float


def tower_of(name: str) -> str | None:
    """The path of the encoder of images or sound that holds this module or tensor; None outside of one."""
    parts = name.split(".")
    place = next((i for i, part in enumerate(parts, start=1) if TOWER.fullmatch(part)), None)
    return None if place is None else ".".join(parts[:place])
