import pytest
from tests.causes.only import findings

from finitune.causes import vision_tower_fp16
from finitune.causes.vision_tower_fp16 import weigh
from finitune.facts import Model, Precision, Training, Weights
from finitune.finding import Origin
from finitune.naming import Reach

foresee = findings(vision_tower_fp16.foresee)

HALF = Precision(compute="float16", source="args.json: fp16")


@pytest.mark.parametrize(
    ("family", "name"),
    [
        ("llava", None), ("qwen2_vl", None), ("qwen2_5_vl", None), ("minicpmv", None), ("mllama", None),
        (None, "openbmb/MiniCPM-V-2_6"), (None, "Qwen/Qwen2.5-VL-3B-Instruct"),
    ],
)  # fmt: skip
def test_fires_for_a_model_that_sees(family, name):
    (finding,) = foresee(HALF, Model(family=family), Training(model_name=name))
    assert finding.severity == "info"
    assert (finding.where.file, finding.where.key) == ("args.json", "fp16")


@pytest.mark.parametrize(
    ("precision", "family", "name"),
    [
        (Precision(compute="bfloat16"), "llava", None),
        (HALF, "llama", "meta-llama/Llama-2-7b"),
        (HALF, None, None),
        (HALF, "qwen2", "/data/evl/qwen"),
    ],
)
def test_stays_quiet(precision, family, name):
    assert not list(foresee(precision, Model(family=family), Training(model_name=name)))


def test_weighs_by_the_module():
    tower = Origin(module="vpm.encoder.layers.26.mlp", op="aten.mm", phase="forward", dtype="float16")
    other = Origin(module="model.layers.3.mlp", op="aten.mm", phase="forward", dtype="float16")
    assert sum(e.bits for e in weigh(tower)) > 0
    assert sum(e.bits for e in weigh(other)) < 0


TENSOR = "vpm.encoder.layers.1.mlp.fc1.weight"


def weights(value: float) -> Weights:
    return Weights(tensors=[], reaches=[Reach(tensor=TENSOR, row=7, value=value)])


def origin(module: str, phase="forward", dtype="float16") -> Origin:
    return Origin(module=module, op="aten.addmm", phase=phase, dtype=dtype)


def bits(found: Origin) -> float:
    return sum(evidence.bits for evidence in weigh(found))


def test_fires_for_a_row_that_reaches_beyond_float16():
    (finding,) = foresee(Precision(compute="float16"), weights=weights(1e5))
    assert (finding.severity, finding.where.tensor, finding.evidence["row"]) == ("warning", TENSOR, 7)


@pytest.mark.parametrize(
    ("precision", "facts"),
    [
        (Precision(compute="bfloat16"), weights(1e5)),
        (Precision(compute="float16", float32_modules=["vpm"]), weights(1e5)),
        (Precision(compute="float16"), weights(6e4)),
    ],
)
def test_stays_quiet_by_the_weights(precision, facts):
    assert not list(foresee(precision, weights=facts))


def test_fires_after_the_run_for_an_overflow_inside_the_tower_only():
    assert bits(origin("base_model.model.vpm.encoder.layers.1.mlp.fc1")) > 5
    assert bits(origin("model.layers.0.self_attn")) < -5
    assert bits(origin("vision_tower.layers.0", phase="parameter")) < -5
    assert bits(origin("visual.blocks.0", dtype="bfloat16")) < -5
