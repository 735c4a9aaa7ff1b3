import pytest
from tests.causes.only import findings

from finitune.causes import resized_embeddings_init
from finitune.causes.resized_embeddings_init import weigh
from finitune.facts import Adapter, Model, Parallel, Training, Vocabulary

foresee = findings(resized_embeddings_init.foresee)

THIRD = Parallel(kind="deepspeed", zero_stage=3)
TRAINING = Training(framework="transformers")
MODEL = Model(vocabulary=32000)
OLD = {"transformers": "4.31.0"}


def test_fires_for_a_resize_under_zero_3_with_an_old_release():
    (finding,) = foresee(TRAINING, THIRD, OLD, MODEL, Vocabulary(size=32003, source="m/tokenizer.json"))
    assert finding.severity == "warning"
    assert (finding.evidence["ids"], finding.evidence["rows"]) == (32003, 32000)
    assert sum(e.bits for e in weigh(OLD, THIRD)) > 0


@pytest.mark.parametrize(
    ("versions", "parallel", "size"),
    [
        ({"transformers": "4.32.0"}, THIRD, 32003), ({"transformers": "5.23.0"}, THIRD, 32003),
        (OLD, Parallel(kind="deepspeed", zero_stage=2), 32003), (OLD, THIRD, 32000),
        (OLD, THIRD, None), ({}, THIRD, 32003),
    ],
)  # fmt: skip
def test_stays_quiet(versions, parallel, size):
    assert not list(foresee(TRAINING, parallel, versions, MODEL, Vocabulary(size=size)))


def test_stays_quiet_after_a_run_with_a_later_release():
    assert sum(e.bits for e in weigh({"transformers": "5.23.0"}, THIRD)) < 0


ADDED = Training(added_tokens=["<tool>"])


def test_fires_for_new_rows_below_an_adapter_that_leaves_them_frozen():
    (finding,) = foresee(ADDED, adapter=Adapter(kind="lora", target_modules=["q_proj"]))
    assert finding.evidence["added_tokens"] == ["<tool>"]


@pytest.mark.parametrize(
    "adapter",
    [Adapter(kind="lora", trainable=["embed_tokens", "lm_head"]), Adapter(kind="none"), Adapter(kind="prompt-tuning")],
)
def test_stays_quiet_where_they_are_trained(adapter):
    assert not foresee(ADDED, adapter=adapter)
