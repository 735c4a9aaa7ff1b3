"""Which labels the program's own template and collator make: cut away, all ignored, without an end."""

from __future__ import annotations

import random

import pytest
from tests.sources import worlds

import finitune
from finitune.finding import UnreadableInput

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
trl = pytest.importorskip("trl")

LONG = {"prompt": "what is the answer", "completion": " the answer is forty two please help me now"}
SHORT = {"prompt": "what", "completion": " answer"}


@pytest.fixture
def world(tmp_path):
    """What `check` is given besides rows and collator: a tiny model, and a tokenizer that pads with its end token."""
    folder = worlds.model(tmp_path / "m")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    return {
        "model": transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=200, **sizes)),
        "tokenizer": transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(folder / "tokenizer.json"), eos_token="</s>", pad_token="</s>"
        ),
        "gpu": "A100",
    }


def arguments(tmp_path, **said):
    return trl.SFTConfig(str(tmp_path / "o"), report_to=[], use_cpu=True, bf16=False, **said)


def masked_by_id(world):
    return transformers.DataCollatorForLanguageModeling(world["tokenizer"], mlm=False)


def of_trl(world):
    return trl.trainer.sft_trainer.DataCollatorForLanguageModeling(pad_token_id=world["tokenizer"].pad_token_id)


def found(result, cause):
    return [one for one in result.findings if one.cause == cause]


def table(result):
    return {one["what"]: (one["least"], one["most"]) for one in result.lengths}


def test_fires_where_the_collator_masks_the_end(world):
    (one,) = found(
        finitune.check(dataset=[LONG, SHORT] * 4, data_collator=masked_by_id(world), **world), "pad-eos-label-masking"
    )
    assert one.severity == "warning"
    assert one.evidence["rows_with_end"] == 8
    assert "does not learn to stop" in one.message


def test_stays_quiet_where_the_end_is_learned(world, tmp_path):
    result = finitune.check(
        dataset=[LONG, SHORT] * 4, data_collator=of_trl(world), args=arguments(tmp_path, max_length=64), **world
    )
    assert not found(result, "pad-eos-label-masking")
    assert not found(result, "all-labels-ignored")
    assert table(result) == {"rows": (3, 14), "prompts": (1, 4), "targets": (2, 10)}
    assert "targets" in str(result)


def test_fires_where_answers_are_cut_away(world, tmp_path):
    result = finitune.check(
        dataset=[LONG] * 8, data_collator=of_trl(world), args=arguments(tmp_path, max_length=6), **world
    )
    (one,) = found(result, "all-labels-ignored")
    assert one.severity == "warning"
    assert "8 of 8 rows lose more than half of their answer to truncation: 10 target tokens become 2" in one.message
    assert table(result)["targets after truncation"] == (2, 2)


def test_fires_where_every_label_is_ignored(world):
    def collator(rows):
        batch = world["tokenizer"].pad([{"input_ids": row["input_ids"]} for row in rows], return_tensors="pt")
        return {**batch, "labels": torch.full_like(batch["input_ids"], -100)}

    result = finitune.check(dataset=[LONG, SHORT] * 4, data_collator=collator, **world)
    (one,) = found(result, "all-labels-ignored")
    assert one.severity == "error"
    assert not found(result, "pad-eos-label-masking"), "one cause, one finding"


def test_padding_without_a_mask_is_left_out(world):
    pad = world["tokenizer"].pad_token_id

    def collator(rows):
        most = max(len(row["input_ids"]) for row in rows)
        ids = torch.tensor([row["input_ids"] + [pad] * (most - len(row["input_ids"])) for row in rows])
        return {"input_ids": ids, "labels": ids.masked_fill(ids == pad, -100)}

    rows = [{"input_ids": [9, 10, 11]}, {"input_ids": [9, 10, 11, 12, 13]}]
    assert table(finitune.check(dataset=rows, data_collator=collator, **world))["rows"] == (3, 5)


def test_chats_are_rendered_by_the_template_in_memory(world):
    world["tokenizer"].chat_template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    rows = [{"messages": [{"role": "user", "content": "what"}, {"role": "assistant", "content": "forty two"}]}] * 4
    result = finitune.check(dataset=rows, data_collator=of_trl(world), **world)
    assert table(result)["rows"] == (7, 7)


def test_random_numbers_of_the_program_go_on_as_they_were(world):
    collator = masked_by_id(world)

    def drawing(rows):
        torch.rand(3)
        random.random()
        return collator(rows)

    def next_ones():
        return torch.rand(1), random.random()

    torch.manual_seed(3)
    random.seed(3)
    expected = next_ones()
    torch.manual_seed(3)
    random.seed(3)
    finitune.check(dataset=[SHORT], data_collator=drawing, **world)
    assert next_ones() == expected


@pytest.mark.parametrize(
    ("rows", "collator", "why"),
    [
        ([SHORT], lambda _rows: 3, "rows 0 to 0: TypeError"),
        ([SHORT], lambda _rows: {"input_ids": [[1]]}, "rows 0 to 0: KeyError"),
        ([{"n": 1}], lambda rows: rows, "no column of text or tokens among n"),
        (None, lambda rows: rows, "expected beside a dataset"),
    ],
)
def test_a_collator_that_fails_is_one_line(world, rows, collator, why):
    with pytest.raises(UnreadableInput, match=why):
        finitune.check(dataset=rows, data_collator=collator, **world)


PROGRAM = """
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import SFTTrainer, DataCollatorForCompletionOnlyLM
from datasets import load_dataset
model = AutoModelForCausalLM.from_pretrained("m")
data = load_dataset("json", data_files="d.jsonl", split="train")
{before}
args = TrainingArguments("o", bf16=True, learning_rate=1e-5, per_device_train_batch_size=4)
trainer = SFTTrainer(model, args=args, train_dataset=data, data_collator={collator}{more})
"""
COLLATOR = 'DataCollatorForCompletionOnlyLM("answer is", tokenizer=tokenizer)'


def program(tmp_path, monkeypatch, text, **said):
    worlds.model(tmp_path / "m")
    (tmp_path / "d.jsonl").write_text(f'{{"text": "{text}"}}\n' * 4)
    (tmp_path / "train.py").write_text(PROGRAM.format(**{"before": "", "collator": COLLATOR, "more": "", **said}))
    monkeypatch.chdir(tmp_path)
    return finitune.check("train.py", gpu="A100")


def test_fires_where_the_response_template_of_a_script_is_in_no_row(tmp_path, monkeypatch):
    (one,) = found(program(tmp_path, monkeypatch, "what is the answer"), "all-labels-ignored")
    assert one.severity == "error"


def test_fires_for_unsloth_s_way_to_say_it(tmp_path, monkeypatch):
    more = ")\ntrainer = train_on_responses_only(trainer, instruction_part='what', response_part='answer is'"
    assert found(program(tmp_path, monkeypatch, "what is the answer", collator="None", more=more), "all-labels-ignored")


def test_stays_quiet_where_it_is_there(tmp_path, monkeypatch):
    assert not found(program(tmp_path, monkeypatch, "what the answer is forty two"), "all-labels-ignored")


@pytest.mark.parametrize("own", [{"more": ", formatting_func=lambda r: r"}, {"before": "data = data.map(str)"}])
def test_rows_that_a_program_makes_itself_are_said(tmp_path, monkeypatch, own):
    result = program(tmp_path, monkeypatch, "what is the answer", **own)
    assert not found(result, "all-labels-ignored")
    assert any("labels (computed in line" in one.why for one in result.not_checked)


NO_END = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }} {% endfor %}"
ENDED = NO_END.replace("{% endfor %}", "{% if m['role'] == 'assistant' %}</s>{% endif %} {% endfor %}")
"""The space is what templates often leave behind the end."""


def of_template(tmp_path, template, rows=None, config=None):
    folder = worlds.model(tmp_path / "m", tokenizer=False)
    worlds.add_tokenizer(folder, chat_template=template)
    data = worlds.jsonl(tmp_path / "d.jsonl", rows or [worlds.chat(), worlds.chat("what", "it is")])
    return finitune.check(*([config] if config else []), model=folder, data=data, gpu="A100")


def test_fires_where_no_row_holds_the_end(tmp_path):
    (one,) = found(of_template(tmp_path, NO_END), "pad-eos-label-masking")
    assert one.severity == "warning"
    assert "none of 2 answers ends with the end token (2): the model does not learn to stop" in one.message
    assert (one.where.line, one.where.tokens) == (1, [2])
    assert "{{ eos_token }}" in one.remedy.text


@pytest.mark.parametrize(
    ("template", "more"),
    [
        (ENDED, {}),
        (worlds.CHATML, {}),  # it closes turns with a token of its own
        (NO_END, {"config": {"max_length": 3, "learning_rate": 1e-5, "output_dir": "o"}}),  # all rows are cut
        (NO_END, {"config": {"packing": True, "learning_rate": 1e-5, "output_dir": "o"}}),
    ],
)
def test_stays_quiet_where_the_end_is_there_or_nobody_can_say(tmp_path, template, more):
    assert not found(of_template(tmp_path, template, **more), "pad-eos-label-masking")


def test_plain_text_is_said_not_to_be_judged(tmp_path):
    result = of_template(tmp_path, NO_END, rows=[{"text": "what is the answer"}] * 3)
    assert not found(result, "pad-eos-label-masking")
    assert any("end tokens" in one.why for one in result.not_checked if one.input == "data")


def test_fires_where_the_collator_s_rows_hold_no_end(world):
    world["tokenizer"].chat_template = NO_END
    result = finitune.check(dataset=[worlds.chat(), worlds.chat("what")], data_collator=of_trl(world), **world)
    (one,) = found(result, "pad-eos-label-masking")
    assert (one.severity, one.where.line) == ("warning", 1)


def test_fires_where_rows_with_labels_hold_no_end(world):
    rows = [{"input_ids": [9, 10, 11, 12][:n], "labels": [-100, -100, 11, 12][:n]} for n in (3, 4)]
    (one,) = found(finitune.check(dataset=rows, **world), "pad-eos-label-masking")
    assert "none of 1 answers" in one.message  # the longest row may have been cut
