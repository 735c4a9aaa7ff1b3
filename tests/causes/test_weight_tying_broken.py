import pytest
from tests.causes.only import findings

from finitune.causes import weight_tying_broken
from finitune.causes.weight_tying_broken import weigh
from finitune.facts import Adapter, Model, Optimizer, TensorScan, Weights

foresee = findings(weight_tying_broken.foresee)

TIED = Model(tied=True)
RUN = Optimizer(lr=1e-5)


def weights(embedding: float, head: float | None) -> Weights:
    names = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    return Weights(
        tensors=[
            TensorScan(name=name, dtype="bfloat16", shape=(8, 4), nonfinite=0, peak=1.0, rms=rms, file="m")
            for name, rms in names.items()
            if rms is not None
        ]
    )


def test_fires_for_two_matrices_under_one_flag():
    (finding,) = foresee(TIED, weights(0.02, 0.05))
    assert finding.severity == "warning"
    assert finding.where.tensor == "lm_head.weight"


@pytest.mark.parametrize(
    "adapter",
    [
        Adapter(kind="lora", trainable=["embed_tokens", "lm_head"]),
        Adapter(kind="lora", target_modules=["q_proj", "lm_head"]),
    ],
)
def test_fires_for_an_adapter_that_trains_one_of_the_two(adapter):
    (finding,) = foresee(TIED, None, adapter)
    assert "lm_head" in finding.evidence["trained"]


@pytest.mark.parametrize(
    ("model", "scans", "adapter"),
    [
        (Model(tied=False), weights(0.02, 0.05), Adapter(kind="lora", trainable=["lm_head"])),
        (Model(), weights(0.02, 0.05), None),
        (TIED, weights(0.02, 0.02), None),
        (TIED, weights(0.02, None), Adapter(kind="lora", target_modules=["q_proj", "v_proj"])),
        (TIED, None, Adapter(kind="lora", target_modules=["all-linear"])),
    ],
)
def test_stays_quiet(model, scans, adapter):
    assert not list(foresee(model, scans, adapter))


def test_stays_quiet_after_a_non_finite_step():
    assert sum(e.bits for e in weigh(TIED, {"nonfinite-loss"})) < 0
    assert sum(e.bits for e in weigh(Model(tied=False), set())) < 0
