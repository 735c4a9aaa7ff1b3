"""Where demos keep what takes a minute to make."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """FINITUNE_CACHE, else `finitune` in the user's cache directory (XDG_CACHE_HOME, %LOCALAPPDATA%, ~/.cache)."""
    own = os.environ.get("FINITUNE_CACHE")
    if own:
        return Path(own)
    user = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(user) if user else Path.home() / ".cache") / "finitune"
