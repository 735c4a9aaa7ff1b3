import pytest

from finitune.causes.vision_tower_fp16 import foresee, weigh
from finitune.facts import Precision, Weights
from finitune.finding import Origin
from finitune.reach import Reach

TENSOR = "vpm.encoder.layers.1.mlp.fc1.weight"


def weights(value: float) -> Weights:
    return Weights(tensors=[], reaches=[Reach(tensor=TENSOR, row=7, value=value)])


def origin(module: str, phase="forward", dtype="float16") -> Origin:
    return Origin(module=module, op="aten.addmm", phase=phase, dtype=dtype)


def bits(found: Origin) -> float:
    return sum(evidence.bits for evidence in weigh(found))


def test_fires_for_a_row_that_reaches_beyond_float16():
    (finding,) = foresee(Precision(compute="float16"), weights(1e5))
    assert (finding.severity, finding.where.tensor, finding.evidence["row"]) == ("warning", TENSOR, 7)


@pytest.mark.parametrize(
    ("precision", "facts"),
    [
        (Precision(compute="bfloat16"), weights(1e5)),
        (Precision(compute="float16", float32_modules=["vpm"]), weights(1e5)),
        (Precision(compute="float16"), weights(6e4)),
    ],
)
def test_stays_quiet(precision, facts):
    assert not list(foresee(precision, facts))


def test_fires_after_the_run_for_an_overflow_inside_the_tower_only():
    assert bits(origin("base_model.model.vpm.encoder.layers.1.mlp.fc1")) > 5
    assert bits(origin("model.layers.0.self_attn")) < -5
    assert bits(origin("vision_tower.layers.0", phase="parameter")) < -5
    assert bits(origin("visual.blocks.0", dtype="bfloat16")) < -5
