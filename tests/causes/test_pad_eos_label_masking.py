"""Programs that pad with the end that they write, and programs whose end is learned."""

import pytest

from finitune import check

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
