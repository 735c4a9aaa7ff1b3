from tests.causes.only import findings

from finitune.causes.corrupt_checkpoint import foresee as corrupt
from finitune.causes.nan_saved_in_checkpoint import foresee, weigh
from finitune.facts import TensorScan, Weights


def tensor(nonfinite: int, name: str = "layers.0.self_attn.q_proj.weight") -> TensorScan:
    return TensorScan(
        name=name, dtype="float32", shape=(8, 8), nonfinite=nonfinite, peak=0.1, rms=0.02, file="model.safetensors",
        first_nonfinite=[0, 0] if nonfinite else None,
    )  # fmt: skip


def test_fires_where_whole_tensors_are_nan_and_the_chapter_on_damage_does_not():
    weights = Weights(tensors=[tensor(64), tensor(64, "layers.0.mlp.up_proj.lora_A.weight"), tensor(0)])
    (finding,) = foresee(weights)
    assert finding.severity == "error"
    assert "2 of 3 tensors" in finding.message
    assert finding.where.tensor == "layers.0.self_attn.q_proj.weight"
    assert not findings(corrupt)(weights)


def test_stays_quiet_where_single_values_are_damaged():
    weights = Weights(tensors=[tensor(3), tensor(0)])
    assert not list(foresee(weights))
    assert len(findings(corrupt)(weights)) == 1


def test_weighs_for_and_against():
    assert sum(e.bits for e in weigh(Weights(tensors=[tensor(64)]))) > 0
    assert sum(e.bits for e in weigh(Weights(tensors=[tensor(1)]))) < 0
