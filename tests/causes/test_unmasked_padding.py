from pathlib import Path

import numpy as np
import pytest

from finitune.causes.unmasked_padding import foresee, weigh
from finitune.facts import Batching, EmbeddingRows, Optimizer, Precision, Vocabulary
from finitune.finding import Origin
from finitune.preflight import check

EXAMPLE = Path(__file__).parents[2] / "examples" / "ludwig"

LUDWIG = Batching(padding_side="left", pad_id=0, source="model.yaml")
MISTRAL = Vocabulary(eos_id=2, unk_id=0, source="model/tokenizer.json")
HALF = Precision(compute="float16")


def rows(of_zero):
    return EmbeddingRows(
        tensor="embed", ids=np.arange(3), rms=np.array([of_zero, 0.1, 0.1]), median_rms=0.1,
        lost_in_cast=np.zeros(3), dtype="bfloat16",
    )  # fmt: skip


def test_fires_as_an_error_where_the_padding_is_a_zero_row_in_float16():
    (finding,) = foresee(LUDWIG, Optimizer(batch=4), MISTRAL, rows(0.0), HALF)
    assert finding.severity == "error"
    assert (finding.where.file, finding.where.key) == ("model/tokenizer_config.json", "pad_token")
    assert finding.evidence["masked"] == 2


@pytest.mark.parametrize("given", [{}, {"rows": rows(0.1), "precision": HALF}, {"rows": rows(0.0)}])
def test_fires_as_a_warning_where_gradients_may_bear_it(given):
    (finding,) = foresee(LUDWIG, Optimizer(), MISTRAL, **given)
    assert finding.severity == "warning"


def test_fires_where_the_tokenizer_names_another_padding_token():
    assert list(foresee(LUDWIG, Optimizer(), Vocabulary(eos_id=2, pad_id=3)))


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
    assert not list(foresee(batching, optimizer, vocabulary, rows(0.0), HALF))


def seen(**given):
    return Batching(pad_id=0, padded_rows=3, pads_attended=True, **given)


def test_fires_after_a_run_where_the_batch_was_padded_and_seen():
    at_padding = Origin(module="a", op="aten._to_copy", phase="backward", dtype="float16", padding=True)
    assert sum(e.bits for e in weigh(seen(padding_side="left"), at_padding)) == 9
    assert sum(e.bits for e in weigh(seen(padding_side="right"), at_padding)) < 0
    assert sum(e.bits for e in weigh(Batching(padding_side="left", pads_attended=False), at_padding)) < 0


def test_fires_softly_where_the_tokenizer_is_not_known():
    (finding,) = foresee(LUDWIG, Optimizer())
    assert finding.severity == "info"


def checked(tmp_path, *cured):
    """What check says of the example, with the files that the remedy changes laid over it."""
    pytest.importorskip("tokenizers")
    for file in ("model.yaml", "train.csv", *(f"model/{path.name}" for path in (EXAMPLE / "model").iterdir())):
        source = EXAMPLE / "cured" / file if file in cured else EXAMPLE / file
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(source.read_bytes())
    return check(tmp_path / "model.yaml", model=tmp_path / "model", data=tmp_path / "train.csv", gpu="V100").findings


def test_fires_on_the_example(tmp_path):
    found = {finding.cause: finding.severity for finding in checked(tmp_path)}
    assert (found["unmasked-padding"], found["quant-compute-dtype"]) == ("error", "warning")
    assert "fully-masked-attention-rows" not in found


def test_stays_quiet_on_the_cured_example(tmp_path):
    assert not checked(tmp_path, "model.yaml", "model/tokenizer_config.json")


def test_fires_as_a_warning_where_only_the_dtype_is_cured(tmp_path):
    assert {f.cause: f.severity for f in checked(tmp_path, "model.yaml")} == {"unmasked-padding": "warning"}
