import numpy as np
import pytest
from tests.causes.only import findings

from finitune.causes import tokenizer_vocab_mismatch
from finitune.causes.tokenizer_vocab_mismatch import weigh
from finitune.facts import Batching, Model, Optimizer, TensorScan, TokenUse, Weights

foresee = findings(tokenizer_vocab_mismatch.foresee)


def use(*ids: int, pad_id: int | None = None) -> TokenUse:
    ones = np.ones(len(ids), np.int64)
    return TokenUse(ids=np.array(ids, np.int64), counts=ones, first=ones, sequences=1, pad_id=pad_id, source="d.jsonl")


def embedding(rows: int) -> Weights:
    scan = TensorScan(
        name="model.embed_tokens.weight", dtype="bfloat16", shape=(rows, 8), nonfinite=0, peak=1.0, rms=0.1
    )
    return Weights(tensors=[scan])


def test_fires_for_ids_beyond_the_rows():
    (finding,) = foresee(use(3, 32000, 32002), Model(vocabulary=32000))
    assert finding.severity == "error"
    assert finding.where.tokens == [32000, 32002]
    assert finding.evidence == {"rows": 32000, "largest_id": 32002, "ids_beyond": 2}
    assert sum(e.bits for e in weigh(use(3, 32002), Model(vocabulary=32000))) > 0


def test_fires_for_a_padding_id_beyond_the_rows():
    (finding,) = foresee(use(3, pad_id=32000), Model(vocabulary=32000))
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("tokens", "model", "more"),
    [
        (use(3, 31999, pad_id=0), Model(vocabulary=32000), {}),
        (use(3, 32001), Model(vocabulary=32000), {"weights": embedding(32064)}),
        (use(3, 99), Model(), {}),
        (use(3, pad_id=32000), Model(vocabulary=32000), {"optimizer": Optimizer(batch=1)}),
        (use(3, pad_id=32000), Model(vocabulary=32000), {"batching": Batching(packing=True)}),
    ],
)
def test_stays_quiet(tokens, model, more):
    assert not list(foresee(tokens, model, **more))


def test_stays_quiet_after_a_run_whose_ids_are_inside():
    assert sum(e.bits for e in weigh(use(3, 5), Model(vocabulary=10))) < 0
