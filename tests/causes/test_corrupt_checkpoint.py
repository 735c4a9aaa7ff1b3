import pytest
from tests.causes.only import findings

from finitune.causes import corrupt_checkpoint
from finitune.causes.corrupt_checkpoint import weigh
from finitune.facts import Model, TensorScan, Weights
from finitune.finding import Origin
from finitune.series import Series

foresee = findings(corrupt_checkpoint.foresee)


def tensor(name: str, *, peak: float = 1.0, nonfinite: int = 0, shape: tuple[int, ...] = (4, 4), **more) -> TensorScan:
    return TensorScan(name=name, dtype="bfloat16", shape=shape, nonfinite=nonfinite, peak=peak, rms=peak, **more)


def found(*tensors: TensorScan, problems: tuple[str, ...] = ()):
    return list(foresee(Weights(tensors=tensors, problems=problems, source="dir")))


SOUND_NORM = tensor("model.layers.1.input_layernorm.weight", shape=(4,))


def test_fires_for_non_finite_weights_with_tensor_index_and_count():
    (finding,) = found(tensor("a.weight", nonfinite=3, first_nonfinite=[1, 2], file="x.safetensors"))
    assert finding.severity == "error"
    assert (finding.where.file, finding.where.tensor) == ("x.safetensors", "a.weight")
    assert finding.evidence["nonfinite"] == 3
    assert finding.evidence["first_nonfinite"] == [1, 2]
    assert "3 of 16" in finding.message


def test_fires_for_every_problem_of_the_files():
    assert [f.severity for f in found(problems=("one", "two"))] == ["error", "error"]


def test_fires_for_a_norm_of_zeros_among_sound_norms():
    (finding,) = found(tensor("model.layers.0.input_layernorm.weight", peak=0, shape=(4,)), SOUND_NORM)
    assert finding.severity == "error"


@pytest.mark.parametrize(
    "name", ["model.layers.0.mlp.down_proj.weight", "h.3.attn.c_attn.weight", "lm_head.weight", "t.wo.weight"]
)
def test_fires_as_a_warning_for_a_linear_weight_of_zeros(name):
    assert [f.severity for f in found(tensor(name, peak=0))] == ["warning"]


@pytest.mark.parametrize(
    "name",
    ["a.q_proj.bias", "a.q_proj.lora_B.weight", "a.q_proj.lora_B.default.weight", "a.lora_A.weight", "cross.attn_gate",
     "a.embed.weight", "x.adapter.up.weight"],
)  # fmt: skip
def test_stays_quiet_about_zeros_that_are_meant(name):
    assert not found(tensor(name, peak=0), SOUND_NORM)


def test_stays_quiet_where_every_norm_is_stored_as_an_offset_from_one():
    assert not found(
        tensor("model.layers.0.input_layernorm.weight", peak=0, shape=(4,)),
        tensor("model.norm.weight", peak=0, shape=(4,)),
    )


def test_stays_quiet_about_sound_and_empty_tensors():
    assert not found(tensor("a.q_proj.weight"), SOUND_NORM, tensor("scalar", peak=0, shape=()))


def test_fires_for_one_weight_beyond_all_others():
    (finding,) = found(tensor("model.layers.0.mlp.down_proj.weight", peak=3e8))
    assert finding.severity == "error"
    assert "3e+08" in finding.message


def test_one_flipped_weight_counts_in_a_small_tensor_too():
    name = "mlp.down_proj.weight"  # of 64 x 64 weights, so that the peak is at most 64 times the rms
    small = TensorScan(name=name, dtype="bfloat16", shape=(64, 64), nonfinite=0, peak=5e36, rms=8e34)
    assert sum(term.bits for term in weigh(Weights(tensors=[small], source="dir"))) > 0


def test_fires_for_a_shape_that_does_not_fit_the_configuration():
    norm = tensor("model.norm.weight", shape=(2048,))
    (finding,) = foresee(Weights(tensors=[norm], source="dir"), Model(hidden=4096))
    assert "2048 weights and config.json says hidden size 4096" in finding.message
    assert not list(foresee(Weights(tensors=[norm], source="dir"), Model(hidden=2048)))
    rows = tensor("model.embed_tokens.weight", shape=(64, 16))
    (finding,) = foresee(Weights(tensors=[rows], source="dir"), Model(hidden=16, vocabulary=100))
    assert "64 rows and config.json says vocab_size 100" in finding.message


def test_stays_quiet_about_masks_that_are_stored_as_large_numbers():
    assert not found(tensor("transformer.h.0.attn.masked_bias", peak=1e9, shape=()))


NAN = float("nan")


@pytest.mark.parametrize(
    ("losses", "fires"), [([NAN], True), ([NAN, NAN], True), ([2.0, NAN], False), ([2.0, 1.9, NAN], False)]
)
def test_weights_that_trained_for_a_step_came_whole(losses, fires):
    damaged = Weights(tensors=(tensor("a.weight", nonfinite=1),), source="dir")
    bits = sum(one.bits for one in weigh(damaged, loss=Series(range(1, len(losses) + 1), losses)))
    assert (bits > 0) is fires


def test_a_weight_that_an_update_made_bad_came_whole():
    weights = Weights(tensors=(tensor("a.weight", nonfinite=3),), source="dir")
    update = Origin(module="a", op="FactoredAdam.step", phase="optimizer", dtype="float32", tensor="a.weight")
    loaded = Origin(module="a", op="parameter", phase="parameter", dtype="float32", tensor="a.weight")
    assert sum(e.bits for e in weigh(weights, origin=update)) < 0 < sum(e.bits for e in weigh(weights, origin=loaded))
