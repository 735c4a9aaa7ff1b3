"""finitune keeps LLM fine-tuning numerically finite: foresee, catch, name, prove, cure, show."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finitune.aftermath import diagnose as diagnose
    from finitune.monitor import Monitor as Monitor
    from finitune.monitor import Stopped as Stopped
    from finitune.monitor import watch as watch
    from finitune.preflight import check as check
    from finitune.repairs import repair as repair
    from finitune.show import report as report

__version__ = "0.1.0"

# Public name -> the module it lives in. A verb and its module have different names, because importing
# a submodule binds its name on the package and would replace the function.
_PUBLIC = {
    "check": "finitune.preflight",
    "diagnose": "finitune.aftermath",
    "repair": "finitune.repairs",
    "report": "finitune.show",
    "watch": "finitune.monitor",
    "Monitor": "finitune.monitor",
    "Stopped": "finitune.monitor",
}


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'finitune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
