"""How finitune gets into training programs: one file per framework.

`from finitune.integrations import TrainerCallback` works without importing the other frameworks.
"""

from __future__ import annotations

import importlib
from typing import Any

_CALLBACKS = {"LightningCallback": "lightning", "LudwigCallback": "ludwig", "TrainerCallback": "transformers"}


def __getattr__(name: str) -> Any:
    if name in _CALLBACKS:
        return getattr(importlib.import_module(f"{__name__}.{_CALLBACKS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
