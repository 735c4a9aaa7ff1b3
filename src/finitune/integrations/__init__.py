"""How finitune gets into training programs: one file per framework.

Under `finitune run`, `attach()` of a file is called as soon as the program has imported one of the modules that its
`AFTER` names. `from finitune.integrations import TrainerCallback` works without importing the other frameworks.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any


def __getattr__(name: str) -> Any:
    if name.endswith("Callback"):
        for file in sorted(Path(__file__).parent.glob("*.py")):
            if re.search(rf"^(class|def) {name}\(", file.read_text(encoding="utf-8"), re.MULTILINE):
                return getattr(importlib.import_module(f"{__name__}.{file.stem}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
