import numpy as np
import pytest

from finitune.causes.unmasked_padding import foresee, weigh
from finitune.facts import Batching, EmbeddingRows, Optimizer, Precision, Vocabulary
from finitune.finding import Origin

LUDWIG = Batching(padding_side="left", pad_id=0, source="model.yaml")
MISTRAL = Vocabulary(eos_id=2, unk_id=0, source="model/tokenizer.json")
HALF = Precision(compute="float16")


def rows(of_zero):
    return EmbeddingRows(
        tensor="embed", ids=np.arange(3), rms=np.array([of_zero, 0.1, 0.1]), median_rms=0.1,
        lost_in_cast=np.zeros(3), dtype="bfloat16",
    )  # fmt: skip


def test_fires_as_an_error_where_the_padding_is_a_zero_row_in_float16():
    (finding,) = foresee(LUDWIG, MISTRAL, Optimizer(batch=4), rows(0.0), HALF)
    assert finding.severity == "error"
    assert (finding.where.file, finding.where.key) == ("model/tokenizer_config.json", "pad_token")
    assert finding.evidence["masked"] == 2


@pytest.mark.parametrize("given", [{}, {"rows": rows(0.1), "precision": HALF}, {"rows": rows(0.0)}])
def test_fires_as_a_warning_where_gradients_may_bear_it(given):
    (finding,) = foresee(LUDWIG, MISTRAL, **given)
    assert finding.severity == "warning"


def test_fires_where_the_tokenizer_names_another_padding_token():
    assert list(foresee(LUDWIG, Vocabulary(eos_id=2, pad_id=3)))


@pytest.mark.parametrize(
    ("batching", "vocabulary", "optimizer"),
    [
        (LUDWIG, Vocabulary(eos_id=2, pad_id=0), Optimizer(batch=4)),
        (LUDWIG, MISTRAL, Optimizer(batch=1)),
        (Batching(padding_side="left"), MISTRAL, Optimizer(batch=4)),
        (Batching(padding_side="right", pad_id=0), MISTRAL, Optimizer(batch=4)),
        (Batching(padding_side="left", pad_id=0, packing=True), MISTRAL, Optimizer(batch=4)),
    ],
)
def test_stays_quiet(batching, vocabulary, optimizer):
    assert not list(foresee(batching, vocabulary, optimizer, rows(0.0), HALF))


def seen(**given):
    return Batching(pad_id=0, padded_rows=3, pads_attended=True, **given)


def test_fires_after_a_run_where_the_batch_was_padded_and_seen():
    at_padding = Origin(module="a", op="aten._to_copy", phase="backward", dtype="float16", padding=True)
    assert sum(e.bits for e in weigh(seen(padding_side="left"), at_padding)) > 10
    assert sum(e.bits for e in weigh(seen(padding_side="right"), at_padding)) < 0
    assert sum(e.bits for e in weigh(Batching(padding_side="left", pads_attended=False), at_padding)) < 0
