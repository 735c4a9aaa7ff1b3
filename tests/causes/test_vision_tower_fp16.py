import pytest

from finitune.causes.vision_tower_fp16 import foresee, weigh
from finitune.facts import Model, Precision, Training
from finitune.finding import Origin

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
