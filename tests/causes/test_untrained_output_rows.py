import numpy as np
import pytest

from finitune.causes.untrained_output_rows import foresee, weigh
from finitune.facts import Adapter, EmbeddingRows, Model, TokenUse

LORA = Adapter(kind="lora", target_modules=["q_proj"])


def use(*ids: int) -> TokenUse:
    ones = np.ones(len(ids), np.int64)
    return TokenUse(ids=np.array(ids), counts=ones, first=0 * ones, sequences=5, names={6: "<|im_end|>"}, pad_id=0)


def rows(sizes: dict[int, float], twins: dict[int, int] | None = None) -> EmbeddingRows:
    rms, copies = 0.02 + 1e-4 * np.arange(20), np.zeros(20, np.int64)
    for row, size in sizes.items():
        rms[row] = size
    for row, count in (twins or {}).items():
        copies[row] = count
    return EmbeddingRows(
        tensor="lm_head.weight", ids=np.arange(20), rms=rms, median_rms=0.02, lost_in_cast=np.zeros(20),
        dtype="bfloat16", file="model.safetensors", twins=copies,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("adapter", "severity"),
    [(None, "info"), (LORA, "warning"), (Adapter(kind="lora", trainable=["lm_head"]), "info")],
)
def test_fires_for_a_tiny_row_of_a_token_that_is_learned(adapter, severity):
    (finding,) = foresee(use(3, 6), rows({6: 1e-9}), None, adapter)
    assert finding.severity == severity
    assert finding.where.tokens == [6]
    assert "6 <|im_end|>" in finding.message


def test_fires_for_rows_that_are_equal():
    (finding,) = foresee(use(3, 6, 7), rows({6: 0.03, 7: 0.03}, {6: 1, 7: 1}), None, LORA)
    assert finding.where.tokens == [6, 7]


@pytest.mark.parametrize(
    ("tokens", "head", "model"),
    [
        (use(3, 6), rows({}), None),
        (use(3), rows({6: 0.0}), None),
        (use(0, 3), rows({0: 0.0}), None),  # padding is no target
        (use(3, 6), rows({6: 0.0}), Model(tied=True)),
        (use(3, 6), rows({6: 0.03}, {6: 1}), None),  # its twin is not in the data
        (use(3, 25), rows({}), None),
    ],
)
def test_stays_quiet(tokens, head, model):
    assert not list(foresee(tokens, head, model, LORA))


def test_weighs_against_sound_rows():
    assert sum(e.bits for e in weigh(use(3), rows({}), set())) < 0
