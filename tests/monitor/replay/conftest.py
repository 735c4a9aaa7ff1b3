"""Tests of the replay."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
