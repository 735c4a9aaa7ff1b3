import numpy as np
import pytest
from tests.causes.only import findings

from finitune import check
from finitune.causes import pad_eos_label_masking
from finitune.causes.pad_eos_label_masking import weigh
from finitune.facts import Batching, TokenUse, Training, Vocabulary

foresee = findings(pad_eos_label_masking.foresee)

SAME = Vocabulary(pad_id=2, eos_id=2, source="m/tokenizer_config.json")
TRAINER = Training(framework="transformers")
OLD = {"trl": "0.11.4"}


def use(*ids: int) -> TokenUse:
    ones = np.ones(len(ids), np.int64)
    return TokenUse(ids=np.array(ids, np.int64), counts=ones * 7, first=ones, sequences=7)


def test_fires_where_the_collator_masks_the_end_by_its_id():
    (finding,) = foresee(use(2, 5), SAME, TRAINER, versions=OLD)
    assert finding.severity == "warning"
    assert finding.evidence["end_tokens"] == 7
    assert finding.where.tokens == [2]


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "more"),
    [
        (use(2, 5), Vocabulary(pad_id=0, eos_id=2), {"training": TRAINER, "versions": OLD}),
        (use(4, 5), SAME, {"training": TRAINER, "versions": OLD}),
        (use(2, 5), SAME, {"training": TRAINER, "versions": {"trl": "1.16.0"}}),
        (use(2, 5), SAME, {"training": Training(framework="llama-factory"), "versions": OLD}),
        (use(2, 5), SAME, {"training": TRAINER}),
        (use(2, 5), SAME, {"training": TRAINER, "versions": OLD, "batching": Batching(packing=True)}),
        (use(2, 5), SAME, {"training": TRAINER, "versions": OLD, "batching": Batching(pad_token="<pad>")}),
    ],
)
def test_stays_quiet(tokens, vocabulary, more):
    assert not list(foresee(tokens, vocabulary, **more))


def test_stays_quiet_after_a_run_with_bad_numbers():
    assert sum(e.bits for e in weigh(SAME, {"nonfinite-loss"})) < 0


PROGRAM = """
from transformers import AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments
tok = AutoTokenizer.from_pretrained("x/llama")
tok.pad_token = tok.eos_token
rows = [tok(f"{q} {a}{tok.eos_token}") for q, a in pairs]
args = TrainingArguments("out", learning_rate=1e-5)
Trainer(args=args, train_dataset=rows, data_collator=DataCollatorForLanguageModeling(tok, mlm=False)).train()
"""


def test_fires_for_a_program_that_pads_with_the_end_that_it_writes(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    (finding,) = check(tmp_path / "train.py").findings
    assert (finding.cause, finding.severity, finding.where.line) == ("pad-eos-label-masking", "warning", 4)


@pytest.mark.parametrize(
    ("words", "others"),
    [
        ("{tok.eos_token}", ""),  # it writes none
        ("tok.pad_token = tok.eos_token", "tok.add_special_tokens({'pad_token': '[PAD]'})"),
        ("tok.pad_token = tok.eos_token", "if tok.pad_token is None:\n    tok.pad_token = tok.eos_token"),
        ("DataCollatorForLanguageModeling(tok, mlm=False)", "own_collator"),
        ("from transformers import AutoTokenizer, DataCollatorForLanguageModeling,",
         "from trl.trainer.utils import DataCollatorForLanguageModeling\nfrom transformers import AutoTokenizer,"),
    ],
)  # fmt: skip
def test_stays_quiet_for_a_program_that_masks_no_end(tmp_path, words, others):
    (tmp_path / "train.py").write_text(PROGRAM.replace(words, others))
    assert not check(tmp_path / "train.py").findings
