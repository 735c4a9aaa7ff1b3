"""What every test relies on: one thread per process, no network, and Hypothesis that gives the same answer twice."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]}
settings.register_profile("default", max_examples=60, derandomize=True, **_COMMON)
settings.register_profile("search", max_examples=5000, **_COMMON)  # HYPOTHESIS_PROFILE=search, by hand
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
