import shlex

import ml_dtypes
import numpy as np
import pytest

from finitune.facts import Adapter, Model
from finitune.remedies.cast_weights import TARGETS, apply, propose


def test_fires_for_float16_weights_that_are_trained():
    remedy = propose(Model(path="my model/", dtype="float16"))
    assert shlex.split(remedy.command) == [
        "finitune", "repair", "cast-weights", "--model", "my model/", "--dtype", "float32", "--output",
        "my model-float32",
    ]  # fmt: skip


def test_stays_quiet_for_other_dtypes_and_beside_an_adapter():
    assert propose() is None
    assert propose(Model(path="m", dtype="bfloat16")) is None
    assert propose(Model(path="m", dtype="float16"), adapter=Adapter(kind="lora")) is None


def test_overflow_and_loss_are_counted_and_what_was_not_finite_is_no_overflow():
    values = np.array([0.0, 1e-9, -1e-9, 2.0**-24, 65504, 65520, -7e4, np.inf, np.nan], np.float32)
    cast, overflow, vanished = apply(values, "float16")
    assert cast.dtype == np.float16
    assert (overflow, vanished) == (2, 2)


@pytest.mark.parametrize("dtype", TARGETS)
def test_bfloat16_to_any_wider_dtype_loses_nothing(dtype):
    values = np.array([0.0, 1.5, -3e-5, 1000.0], np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
    cast, overflow, vanished = apply(values, dtype)
    assert (overflow, vanished) == (0, 0)
    if dtype != "float16":
        np.testing.assert_array_equal(cast.astype(np.float32), values)
