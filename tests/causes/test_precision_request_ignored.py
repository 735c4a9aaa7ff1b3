import pytest

from finitune.causes.precision_request_ignored import foresee, weigh
from finitune.facts import Precision


def asked(**more) -> Precision:
    return Precision(**{"compute": "float16", "scaler": "dynamic", "cpu": True, "source": "args.json: fp16", **more})


@pytest.mark.parametrize(
    ("who", "severity", "said"),
    [
        ("transformers", "warning", "float32"),
        ("accelerate", "warning", "float32"),
        ("lightning", "warning", "bfloat16"),
        ("deepspeed", "error", "refuses"),
    ],
)
def test_fires_for_float16_on_a_cpu(who, severity, said):
    (finding,) = foresee(asked(requested_by=who))
    assert finding.severity == severity
    assert said in finding.message
    assert (finding.where.file, finding.where.key) == ("args.json", "fp16")


@pytest.mark.parametrize(
    "precision",
    [asked(cpu=None), asked(cpu=False), asked(compute="bfloat16", scaler="none"), asked(scaler="none")],
)
def test_stays_quiet(precision):
    assert not list(foresee(precision))


def test_weighs_against_bad_numbers():
    assert sum(e.bits for e in weigh(asked(), {"nonfinite-loss"})) < 0
