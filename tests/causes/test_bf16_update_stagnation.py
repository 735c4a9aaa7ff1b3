"""Which share of the weights an update moves, against rounding itself and over the course of a schedule."""

import ml_dtypes
import numpy as np
import pytest
from tests.causes.rows import found

from finitune.causes.bf16_update_stagnation import moved_fraction
from finitune.facts import Optimizer, Precision

BRAIN = Precision(compute="bfloat16", parameters="bfloat16", scaler="none", source="a.json: bf16")


@pytest.mark.parametrize("lr", [1e-4, 3e-5, 1e-5, 5e-6, 1e-6])
def test_the_formula_agrees_with_rounding_itself(lr):
    drawn = np.random.default_rng(0).normal(0, 0.02, 200_000).astype(ml_dtypes.bfloat16)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], drawn.size)
    wide = drawn.astype(np.float32)
    moved = ((wide + lr * signs).astype(ml_dtypes.bfloat16) != drawn).mean()
    assert moved_fraction(lr, 0.02) == pytest.approx(moved, abs=0.02)


@pytest.mark.parametrize(("max_steps", "said"), [(None, "from 50 % of it on"), (1000, "from step 500 on")])
def test_fires_with_a_forecast_over_the_schedule(max_steps, said):
    optimizer = Optimizer(lr=1.5e-5, lora=False, schedule="cosine", max_steps=max_steps)
    (finding,) = found("bf16-update-stagnation", precision=BRAIN, optimizer=optimizer)
    shares = [moved_fraction(1.5e-5 * (1 + np.cos(np.pi * i / 100)) / 2, 0.02) for i in range(100)]
    assert finding.evidence["moved_over_schedule"] == pytest.approx(np.mean(shares))
    assert finding.evidence["stalls_from"] == next(i for i, share in enumerate(shares) if share < 0.1) / 100
    assert said in finding.message
