"""Strict JSON text of anything a verb returns."""

from __future__ import annotations

import json
from typing import Any

from finitune.finding import as_json


def render(value: Any) -> str:
    """`value` as JSON; non-finite numbers are the strings "nan", "inf", "-inf"."""
    return json.dumps(as_json(value), allow_nan=False, indent=2)
