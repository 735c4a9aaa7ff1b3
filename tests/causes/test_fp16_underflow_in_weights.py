import pytest

from finitune.causes.fp16_underflow_in_weights import foresee, weigh
from finitune.facts import Precision, TensorScan, Weights

HALF = Precision(compute="float16")


def weights(underflow: int, *, name: str = "model.layers.0.mlp.up_proj.weight", shape=(100, 10)) -> Weights:
    tensor = TensorScan(
        name=name, dtype="bfloat16", shape=shape, nonfinite=0, peak=1e-5, rms=1e-7, underflow=underflow,
        file="model.safetensors",
    )  # fmt: skip
    return Weights(tensors=[tensor], source="model")


@pytest.mark.parametrize(("underflow", "severity"), [(60, "warning"), (600, "error")])
def test_fires_with_the_share_and_the_tensor(underflow, severity):
    (finding,) = foresee(HALF, weights(underflow))
    assert finding.severity == severity
    assert finding.where.tensor == "model.layers.0.mlp.up_proj.weight"
    assert finding.evidence["share"] == underflow / 1000
    assert f"{underflow / 10:.1f}%" in finding.message


@pytest.mark.parametrize(
    ("precision", "found"),
    [
        (Precision(compute="bfloat16"), weights(600)),
        (HALF, weights(10)),
        (HALF, weights(600, name="model.embed_tokens.weight")),
        (HALF, weights(600, shape=(1000,))),
        (HALF, Weights(tensors=[])),
    ],
)
def test_stays_quiet(precision, found):
    assert not list(foresee(precision, found))


def test_weighs_for_and_against():
    assert sum(e.bits for e in weigh(HALF, weights(600), set())) > 0
    assert sum(e.bits for e in weigh(HALF, weights(0), set())) < 0
