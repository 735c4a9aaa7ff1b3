import numpy as np
import pytest
from tests.causes.only import findings

from finitune.causes import fp16_activation_overflow
from finitune.facts import Activations, Attention, Model, Precision, TensorScan, Weights
from finitune.naming import ActivationPeak

foresee = findings(fp16_activation_overflow.foresee)

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


def reached(value, *, what="gate * up", pads=False):
    peak = ActivationPeak(module="model.layers.2.mlp", what=what, token=3, value=value)
    quiet = ActivationPeak(module="model.layers.0.mlp", what="output", token=5, value=2.0)
    first, padding = ([quiet], [peak]) if pads else ([quiet, peak], [])
    return Activations(first=first, padding=padding, ids=np.array([3, 5]))


@pytest.mark.parametrize(("pads", "severity"), [(False, "error"), (True, "warning")])
def test_fires_for_a_token_that_leaves_the_range_by_itself(pads, severity):
    (finding,) = foresee(HALF, Model(family="llama", dtype="float16"), weights(), reached(2e5, pads=pads))
    assert (finding.severity, finding.where.module, finding.where.tokens) == (severity, "model.layers.2.mlp", [3])
    assert "2e+05" in finding.message
    assert finding.evidence["padding"] is pads
    assert ("pads rows" in finding.message) is pads


def test_fires_for_the_raw_score_only_where_eager_attention_stores_it():
    scores = reached(7e4, what="query . key")
    model = Model(family="llama", dtype="float16")
    assert list(foresee(HALF, model, weights(), scores, Attention(implementation="eager")))
    assert not list(foresee(HALF, model, weights(), scores, Attention(implementation="sdpa")))
    assert not list(foresee(HALF, model, weights(), scores))


def test_stays_quiet_where_first_tokens_are_known_to_stay_in_range():
    outlying = weights(peak=50.0)
    llama = Model(family="llama", dtype="bfloat16")
    assert list(foresee(HALF, llama, outlying))
    assert not list(foresee(HALF, llama, outlying, reached(100.0)))
    assert list(foresee(HALF, llama, outlying, reached(30000.0)))
    assert not list(foresee(Precision(compute="bfloat16"), llama, outlying, reached(2e5)))


EAGER, FUSED = Attention(implementation="eager"), Attention(implementation="sdpa")


def test_fires_for_a_raw_score_near_the_range_in_eager_attention_and_stays_quiet_in_fused():
    near, qwen = reached(6e4, what="query . key"), Model(family="qwen2", dtype="bfloat16")
    (finding,) = foresee(HALF, qwen, weights(), near, EAGER)
    assert (finding.severity, finding.where.module) == ("warning", "model.layers.2.mlp")
    assert not list(foresee(HALF, qwen, weights(), near, FUSED))
    (family,) = foresee(HALF, qwen, weights(), reached(2e4, what="query . key"), EAGER)
    assert "family" in family.message
    assert list(foresee(HALF, Model(family="t5", dtype="bfloat16"), weights(), near, FUSED))  # T5's is no score
