import pytest
from tests.causes.only import findings

from finitune.causes import adam_eps_underflow_fp16
from finitune.causes.adam_eps_underflow_fp16 import weigh
from finitune.facts import Adapter, Optimizer, Parallel, Precision
from finitune.finding import Origin

foresee = findings(adam_eps_underflow_fp16.foresee)

HALF = Precision(compute="float16", parameters="float16", scaler="none")


def origin(phase: str) -> Origin:
    return Origin(module="m", op="parameter", phase=phase, dtype="float16")


@pytest.mark.parametrize("name", ["adamw_torch", "AdamW", "Adam", "adamw_hf"])
@pytest.mark.parametrize("eps", [None, 1e-8, 2.0**-25])
def test_fires_for_an_eps_that_float16_loses(name, eps):
    (finding,) = foresee(HALF, Optimizer(name=name, eps=eps, source="a.json"))
    assert finding.severity == "error"
    assert (finding.where.file, finding.where.key) == ("a.json", "adam_epsilon")


def test_an_eps_that_nobody_wrote_stands_where_the_weights_are_said_to_be_float16():
    half = Precision(compute="float16", parameters="float16", scaler="none", source="b.yaml: trainer.precision")
    (finding,) = foresee(half, Optimizer(name="adamw", source="b.yaml"))
    assert (finding.where.file, finding.where.key) == ("b.yaml", "trainer.precision")


def test_fires_as_a_warning_when_the_optimizer_is_not_named():
    (finding,) = foresee(HALF, Optimizer())
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("precision", "optimizer"),
    [
        (Precision(compute="float16", parameters="float32", scaler="dynamic"), Optimizer(name="adamw_torch")),
        (Precision(compute="float16", parameters="float16", scaler="dynamic"), Optimizer(name="adamw_torch")),
        (Precision(compute="bfloat16", parameters="bfloat16"), Optimizer(name="adamw_torch")),
        (HALF, Optimizer(name="adamw_torch", eps=1e-5)),
        (HALF, Optimizer(name="adamw_torch_fused")),
        (HALF, Optimizer(name="adamw_bnb_8bit")),
        (HALF, Optimizer(name="adafactor")),
        (HALF, Optimizer(name="sgd")),
        (HALF, Optimizer(name="adamw_torch", lora=True)),
    ],
)
def test_stays_quiet(precision, optimizer):
    assert not list(foresee(precision, optimizer))


def test_stays_quiet_for_adapters_and_for_engines_that_keep_a_float32_copy():
    assert not list(foresee(HALF, Optimizer(name="adamw_torch"), adapter=Adapter(kind="lora")))
    assert not list(foresee(HALF, Optimizer(name="adamw_torch"), parallel=Parallel(kind="deepspeed")))


def test_fires_after_a_run_only_where_the_weights_themselves_are_bad():
    assert sum(e.bits for e in weigh(HALF, Optimizer(name="AdamW", eps=1e-8), origin("parameter"))) > 0
    assert sum(e.bits for e in weigh(HALF, Optimizer(name="AdamW", eps=1e-8), origin("forward"))) < 0
    assert sum(e.bits for e in weigh(HALF, Optimizer(name="AdamW", eps=1e-4), origin("parameter"))) < 0


def test_fires_for_modules_trained_in_full_beside_an_adapter():
    precision = Precision(parameters="float16", compute="float16", scaler="none")
    optimizer = Optimizer(name="adamw_torch", lora=True)
    (finding,) = foresee(precision, optimizer, Adapter(kind="lora", trainable=["embed_tokens"]))
    assert "embed_tokens beside the adapter" in finding.message
    assert not list(foresee(precision, optimizer, Adapter(kind="lora")))
