import pytest
from tests.causes.only import findings

from finitune.causes import fully_masked_attention_rows
from finitune.causes.fully_masked_attention_rows import weigh
from finitune.facts import Attention, Batching, Optimizer, Precision, Quantization, Vocabulary
from finitune.finding import Origin

foresee = findings(fully_masked_attention_rows.foresee)

HALF = Precision(compute="float16")
LEFT = Batching(padding_side="left", source="a.yaml")
EAGER = Attention(implementation="eager")


def test_fires_for_left_padding_with_eager_attention_in_float16():
    (finding,) = foresee(Optimizer(batch=4), HALF, batching=LEFT, attention=EAGER)
    assert finding.severity == "warning"
    assert (finding.where.file, finding.where.key) == ("a.yaml", "padding_side")


def test_fires_softly_where_the_kernel_or_the_side_is_a_guess():
    (unnamed,) = foresee(Optimizer(), HALF, batching=LEFT)
    (own,) = foresee(Optimizer(), HALF, attention=EAGER, vocabulary=Vocabulary(padding_side="left"))
    assert unnamed.severity == own.severity == "info"


def test_fires_for_quantised_weights_computed_in_float16():
    assert list(foresee(Optimizer(), quantization=Quantization(bits=4, compute_dtype="float16"), batching=LEFT))


@pytest.mark.parametrize(
    ("optimizer", "given"),
    [
        (Optimizer(batch=1), {"precision": HALF, "batching": LEFT, "attention": EAGER}),
        (Optimizer(), {"precision": Precision(compute="bfloat16"), "batching": LEFT, "attention": EAGER}),
        (Optimizer(), {"precision": HALF, "batching": Batching(padding_side="right"), "attention": EAGER}),
        (Optimizer(), {"precision": HALF, "batching": Batching(padding_side="left", packing=True)}),
        (
            Optimizer(),
            {"precision": HALF, "batching": LEFT, "attention": Attention(implementation="flash_attention_2")},
        ),
        (
            Optimizer(),
            {"precision": HALF, "batching": LEFT, "attention": Attention(implementation="eager", dtype="float32")},
        ),
        (Optimizer(), {"precision": HALF}),
        (Optimizer(), {}),
    ],
)
def test_stays_quiet(optimizer, given):
    assert not list(foresee(optimizer, **given))


def test_fires_after_a_run_for_a_softmax_at_padded_positions():
    softmax = Origin(
        module="a", op="aten._softmax", phase="forward", dtype="float16", values="16 nan in rows 0", padding=True
    )
    assert sum(e.bits for e in weigh(softmax)) > 5
    assert sum(e.bits for e in weigh(Origin(module="a", op="aten.mm", phase="forward", dtype="float16"))) < 0
