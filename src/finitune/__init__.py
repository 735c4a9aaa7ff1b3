"""finitune keeps LLM fine-tuning numerically finite: foresee, catch, name, prove, cure, show."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from finitune.diagnosis.diagnose import diagnose as diagnose
    from finitune.finding import CheckResult as CheckResult
    from finitune.finding import Diagnosis as Diagnosis
    from finitune.finding import Finding as Finding
    from finitune.finding import Incident as Incident
    from finitune.finding import InputError as InputError
    from finitune.monitor.process import Monitor as Monitor
    from finitune.monitor.process import Stopped as Stopped
    from finitune.monitor.watch import watch as watch
    from finitune.preflight import check as check
    from finitune.recording import Recording as Recording
    from finitune.repairs.repair import repair as repair
    from finitune.repairs.result import RepairResult as RepairResult
    from finitune.show import report as report

__version__ = "0.1.0"

# Public name -> the module it lives in. A verb and its module have different names, because importing
# a submodule binds its name on the package and would replace the function.
_PUBLIC = {
    "check": "finitune.preflight",
    "diagnose": "finitune.diagnosis.diagnose",
    "repair": "finitune.repairs.repair",
    "report": "finitune.show",
    "watch": "finitune.monitor.watch",
    "Monitor": "finitune.monitor.process",
    "Stopped": "finitune.monitor.process",
    "CheckResult": "finitune.finding",
    "Diagnosis": "finitune.finding",
    "Finding": "finitune.finding",
    "Incident": "finitune.finding",
    "Recording": "finitune.recording",
    "RepairResult": "finitune.repairs.result",
    "InputError": "finitune.finding",
}
_FOLDERS = ("integrations",)
__all__ = [*_PUBLIC, *_FOLDERS]  # noqa: PLE0604  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _FOLDERS:
        return importlib.import_module(f"finitune.{name}")
    if name in _PUBLIC:
        try:
            return getattr(importlib.import_module(_PUBLIC[name]), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(
                f"finitune.{name} needs torch: pip install 'finitune[torch]'", name="torch"
            ) from None
    raise AttributeError(f"module 'finitune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
