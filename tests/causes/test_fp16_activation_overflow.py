import pytest

from finitune.causes.fp16_activation_overflow import foresee
from finitune.facts import Model, Precision, TensorScan, Weights

HALF = Precision(compute="float16", source="ds.json: fp16.enabled")


def weights(overflow: int = 0, peak: float = 0.5) -> Weights:
    return Weights(
        tensors=[
            TensorScan(
                name="a.wo.weight", dtype="bfloat16", shape=(4, 4), nonfinite=0, peak=peak, rms=0.1, overflow=overflow
            )
        ]
    )


@pytest.mark.parametrize(
    ("family", "severity"),
    [("qwen2", "warning"), ("t5", "warning"), ("gemma2", "warning"), ("llama", "info"), (None, "info")],
)
def test_fires_for_bfloat16_weights_in_float16_by_what_is_known_of_the_family(family, severity):
    (finding,) = foresee(HALF, Model(family=family, dtype="bfloat16"), weights(peak=2.0))
    assert finding.severity == severity
    assert (finding.where.file, finding.where.key) == ("ds.json", "fp16.enabled")
    assert finding.evidence["max_float16"] == 65504


def test_fires_for_a_family_on_record_and_for_weights_that_were_not_scanned():
    (finding,) = foresee(HALF, Model(family="qwen2", dtype="bfloat16"), weights())
    assert finding.severity == "warning"
    (finding,) = foresee(HALF, Model(family="llama", dtype="bfloat16"))
    assert finding.severity == "info"


def test_fires_for_weights_beyond_the_range_with_their_tensor():
    (finding,) = foresee(HALF, Model(family="llama", dtype="bfloat16"), weights(overflow=3, peak=70144.0))
    assert finding.severity == "error"
    assert finding.where.tensor == "a.wo.weight"
    assert "70144" in finding.message


@pytest.mark.parametrize(
    ("precision", "model"),
    [
        (Precision(compute="bfloat16"), Model(family="t5", dtype="bfloat16")),
        (Precision(compute="float32"), Model(family="t5", dtype="bfloat16")),
        (Precision(), Model(family="t5", dtype="bfloat16")),
        (HALF, Model(family="llama", dtype="float16")),
        (HALF, Model(family="gemma", dtype="float32")),
        (HALF, Model(family="llama", dtype="bfloat16")),
    ],
)
def test_stays_quiet(precision, model):
    assert not list(foresee(precision, model, weights()))
