import pytest
from tests.causes.only import findings

from finitune.causes import rope_precision
from finitune.causes.rope_precision import weigh
from finitune.facts import Batching, Model, Parallel, Precision

foresee = findings(rope_precision.foresee)

BRAIN, HALF = Precision(compute="bfloat16"), Precision(compute="float16")
LLAMA = Model(family="llama", rope_theta=1e4)
ENGINE = Parallel(kind="deepspeed", zero_stage=2)
OLD, NEW = {"transformers": "4.35.2"}, {"transformers": "4.57.1"}


@pytest.mark.parametrize(
    ("precision", "length", "versions", "severity"),
    [(BRAIN, 2048, OLD, "warning"), (HALF, 4096, OLD, "warning"), (BRAIN, 16384, NEW, "info")],
)
def test_fires_where_the_engine_casts_the_table(precision, length, versions, severity):
    (finding,) = foresee(precision, ENGINE, Batching(max_length=length), LLAMA, versions)
    assert finding.severity == severity
    assert str(length) in finding.message


@pytest.mark.parametrize(
    ("precision", "model", "parallel", "length", "versions"),
    [
        (BRAIN, LLAMA, ENGINE, 2048, NEW),
        (HALF, LLAMA, ENGINE, 2048, OLD),
        (BRAIN, LLAMA, Parallel(kind="ddp"), 8192, OLD),
        (BRAIN, Model(family="gpt2"), ENGINE, 8192, OLD),
        (Precision(compute="float32"), LLAMA, ENGINE, 8192, OLD),
        (BRAIN, LLAMA, ENGINE, None, OLD),
    ],
)
def test_stays_quiet(precision, model, parallel, length, versions):
    assert not list(foresee(precision, parallel, Batching(max_length=length), model, versions))


def test_weighs_against_bad_numbers():
    assert sum(e.bits for e in weigh(BRAIN, {"nonfinite-loss"})) < 0
