import pytest
from tests.causes.only import findings

from finitune.causes import quant_compute_dtype
from finitune.causes.quant_compute_dtype import weigh
from finitune.facts import Model, Optimizer, Precision, Quantization
from finitune.finding import Origin

foresee = findings(quant_compute_dtype.foresee)

FOUR = Quantization(bits=4, compute_dtype="float16", compute_dtype_is_default=True, source="l.yaml: quantization")
RUN = Optimizer(lr=1e-4)
BRAIN = Precision(compute="bfloat16")


@pytest.mark.parametrize(
    ("model", "precision", "severity"),
    [(Model(dtype="bfloat16"), None, "warning"), (None, BRAIN, "warning"), (None, None, "info")],
)
def test_fires_by_what_the_model_or_the_run_wanted(model, precision, severity):
    (finding,) = foresee(FOUR, model, precision)
    assert finding.severity == severity
    assert (finding.where.file, finding.where.key) == ("l.yaml", "quantization")


def test_fires_for_eight_bits_without_any_dtype():
    (finding,) = foresee(Quantization(bits=8, kind="int8", compute_dtype_is_default=True), precision=BRAIN)
    assert finding.severity == "info"


@pytest.mark.parametrize(
    ("quantization", "model", "precision"),
    [
        (Quantization(bits=4, compute_dtype="bfloat16"), Model(dtype="bfloat16"), BRAIN),
        (Quantization(bits=4, compute_dtype="float32", compute_dtype_is_default=True), None, BRAIN),
        (Quantization(bits=4, compute_dtype="float16"), Model(dtype="float16"), Precision(compute="float16")),
        (Quantization(bits=8), None, Precision(compute="bfloat16", parameters="bfloat16")),
        (Quantization(bits=4), None, BRAIN),
    ],
)
def test_stays_quiet(quantization, model, precision):
    assert not list(foresee(quantization, model, precision))


def test_fires_after_a_run_only_where_float16_made_the_bad_value():
    half = Origin(module="m", op="aten.mm", phase="forward", dtype="float16")
    brain = Origin(module="m", op="aten.mm", phase="forward", dtype="bfloat16")
    assert sum(e.bits for e in weigh(FOUR, half, BRAIN)) > 0
    assert sum(e.bits for e in weigh(FOUR, brain, BRAIN)) < 0
