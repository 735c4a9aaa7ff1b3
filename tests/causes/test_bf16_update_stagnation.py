import ml_dtypes
import numpy as np
import pytest
from tests.causes.only import findings

from finitune.causes import bf16_update_stagnation
from finitune.causes.bf16_update_stagnation import moved_fraction, weigh
from finitune.facts import Adapter, Optimizer, Parallel, Precision, TensorScan, Weights

foresee = findings(bf16_update_stagnation.foresee)

BRAIN = Precision(compute="bfloat16", parameters="bfloat16", scaler="none", source="a.json: bf16")


@pytest.mark.parametrize("lr", [1e-4, 3e-5, 1e-5, 5e-6, 1e-6])
def test_the_formula_agrees_with_rounding_itself(lr):
    drawn = np.random.default_rng(0).normal(0, 0.02, 200_000).astype(ml_dtypes.bfloat16)
    signs = np.random.default_rng(1).choice([-1.0, 1.0], drawn.size)
    wide = drawn.astype(np.float32)
    moved = ((wide + lr * signs).astype(ml_dtypes.bfloat16) != drawn).mean()
    assert moved_fraction(lr, 0.02) == pytest.approx(moved, abs=0.02)


@pytest.mark.parametrize(
    ("lr", "lora", "severity"),
    [(1e-6, False, "warning"), (5e-6, False, "warning"), (1e-5, False, "info"), (1e-6, None, "info")],
)
def test_fires_by_how_few_weights_move(lr, lora, severity):
    (finding,) = foresee(BRAIN, Optimizer(lr=lr, lora=lora, source="a.json", schedule="cosine"))
    assert finding.severity == severity
    assert finding.where.key == "learning_rate"
    assert finding.evidence["moved_fraction"] == pytest.approx(moved_fraction(lr, 0.02))
    assert "cosine" in finding.message


@pytest.mark.parametrize(("max_steps", "said"), [(None, "from 50 % of it on"), (1000, "from step 500 on")])
def test_fires_with_a_forecast_over_the_schedule(max_steps, said):
    optimizer = Optimizer(lr=1.5e-5, lora=False, schedule="cosine", max_steps=max_steps)
    (finding,) = foresee(BRAIN, optimizer)
    shares = [moved_fraction(1.5e-5 * (1 + np.cos(np.pi * i / 100)) / 2, 0.02) for i in range(100)]
    assert finding.evidence["moved_over_schedule"] == pytest.approx(np.mean(shares))
    assert finding.evidence["stalls_from"] == next(i for i, share in enumerate(shares) if share < 0.1) / 100
    assert said in finding.message


def test_fires_for_weight_decay_that_never_moves_a_weight():
    (finding,) = foresee(BRAIN, Optimizer(lr=1e-3, weight_decay=0.01, lora=False))
    assert finding.severity == "info"
    assert "weight decay 0.01" in finding.message


def test_fires_by_the_size_of_the_weights_themselves():
    small = Weights(tensors=[TensorScan(name="a", dtype="bfloat16", shape=(4, 4), nonfinite=0, peak=0.01, rms=1e-3)])
    assert not list(foresee(BRAIN, Optimizer(lr=1e-5, lora=False), small))


@pytest.mark.parametrize(
    ("precision", "more"),
    [
        (Precision(compute="bfloat16", parameters="float32"), {}),
        (Precision(compute="bfloat16"), {}),
        (BRAIN, {"parallel": Parallel(kind="deepspeed", zero_stage=2)}),
        (BRAIN, {"parallel": Parallel(kind="fsdp")}),
        (BRAIN, {"adapter": Adapter(kind="lora")}),
        (Precision(compute="bfloat16", parameters="bfloat16", source="ds.json: bf16.enabled"), {}),
    ],
)
def test_stays_quiet(precision, more):
    assert not list(foresee(precision, Optimizer(lr=1e-6), **more))


@pytest.mark.parametrize(
    "optimizer",
    [
        Optimizer(lr=1e-3),
        Optimizer(lr=1e-6, lora=True),
        Optimizer(lr=0.0),
        Optimizer(lr=1e-6, name="adamw_anyprecision"),
    ],
)
def test_stays_quiet_for_these_updates(optimizer):
    assert not list(foresee(BRAIN, optimizer))


def test_stays_quiet_after_a_non_finite_step():
    assert sum(e.bits for e in weigh(BRAIN, Optimizer(lr=1e-6), {"nonfinite-loss"})) < 0
