import pytest

from finitune.causes.config_disagreement import foresee, weigh
from finitune.facts import Disagreement, Parallel, Training

DTYPE = Disagreement(
    key="precision.compute",
    values=["bfloat16", "float16"],
    sources=["ds.json: bf16.enabled", "run.sh: fp16"],
)
LENGTH = Disagreement(key="batching.max_length", values=["512", "1024"], sources=["a.yaml", "b.yaml"])
ENGINE = Parallel(kind="deepspeed", zero_stage=2, source="ds.json")


def test_fires_as_an_error_where_the_trainer_refuses_to_start():
    (finding,) = foresee([DTYPE], ENGINE, Training(framework="transformers"))
    assert finding.severity == "error"
    assert (finding.where.file, finding.where.key) == ("ds.json", "bf16.enabled")
    assert finding.evidence["auto_key"] == "bf16.enabled"
    assert "run.sh" in finding.message


@pytest.mark.parametrize(
    ("one", "parallel", "training"),
    [
        (LENGTH, ENGINE, Training(framework="transformers")),
        (DTYPE, ENGINE, Training(framework="deepspeed")),
        (DTYPE, ENGINE, None),
        (DTYPE, None, Training(framework="transformers")),
    ],
)
def test_fires_as_a_warning_where_one_value_wins(one, parallel, training):
    (finding,) = foresee([one], parallel, training)
    assert finding.severity == "warning"
    assert "counts" in finding.message


def test_stays_quiet_where_all_agree():
    assert not list(foresee([], ENGINE))
    assert sum(e.bits for e in weigh([], set())) < 0


def test_fires_after_a_run_for_the_dtype():
    assert sum(e.bits for e in weigh([DTYPE], {"nonfinite-loss"})) > 0
    assert sum(e.bits for e in weigh([LENGTH], {"nonfinite-loss"})) < 0
