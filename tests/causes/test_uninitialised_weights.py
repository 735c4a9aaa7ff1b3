import pytest
from tests.causes.only import findings

from finitune.causes import uninitialised_weights
from finitune.causes.uninitialised_weights import weigh
from finitune.facts import Model, Optimizer, TensorScan, Weights

foresee = findings(uninitialised_weights.foresee)


def weights(*names: str, problems=()) -> Weights:
    tensors = [TensorScan(name=n, dtype="float32", shape=(8, 8), nonfinite=0, peak=0.1, rms=0.02) for n in names]
    return Weights(tensors=tensors, problems=problems, source="model")


WHOLE = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight")


def test_fires_for_layers_that_no_file_holds():
    (finding,) = foresee(weights(*WHOLE), Model(layers=4, tied=True))
    assert finding.severity == "error"
    assert finding.evidence["absent"] == [2, 3]
    assert "4 layers" in finding.message


def test_fires_for_a_head_that_no_file_holds():
    (finding,) = foresee(weights(*WHOLE), Model(layers=2, tied=False), Optimizer(lr=1e-5))
    assert "output head" in finding.message


def test_fires_as_information_for_what_may_be_an_encoder():
    names = [name.removeprefix("model.") for name in WHOLE]
    assert [f.severity for f in foresee(weights(*names), Model(layers=2, tied=False), Optimizer(lr=1e-5))] == ["info"]


@pytest.mark.parametrize(
    ("found", "model"),
    [
        (weights(*WHOLE), Model(layers=2, tied=True)),
        (weights(*WHOLE), Model(layers=2)),
        (weights(*WHOLE, "lm_head.weight"), Model(layers=2, tied=False)),
        (weights(*WHOLE, "score.weight"), Model(layers=2, tied=False)),
        (weights("transformer.wte.weight", "transformer.h.0.attn.c_attn.weight"), Model(layers=1)),
        (weights("base_model.model.model.layers.0.q_proj.lora_A.weight"), Model(layers=2, tied=False)),
        (weights(*WHOLE, problems=["model-2.safetensors: not there"]), Model(layers=4, tied=False)),
        (weights("vision.layers.3.w.weight", *WHOLE), Model(layers=2, tied=True)),
    ],
)
def test_stays_quiet(found, model):
    assert not list(foresee(found, model, Optimizer(lr=1e-5)))


def test_weighs_against_sound_weights():
    assert sum(e.bits for e in weigh(weights(*WHOLE))) < 0
