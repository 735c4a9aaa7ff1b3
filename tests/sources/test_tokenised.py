import json
import tempfile
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sources import worlds
from tests.sources.worlds import chat, jsonl, one_line

from finitune.finding import UnreadableInput
from finitune.sources.data import tokenised
from finitune.sources.data.tokenised import read
from finitune.sources.data.tokenizer import load
from finitune.sources.result import Supervision

pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    return load(worlds.add_tokenizer(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def words_with_bos(tmp_path_factory):
    return load(worlds.add_tokenizer(tmp_path_factory.mktemp("bos"), bos=True))


def supervised(reading) -> list[int]:
    return reading.facts.labels.supervised.tolist()


def test_census_and_first_positions_of_chat_rows(tmp_path, words):
    found = read(jsonl(tmp_path / "d.jsonl", [chat(), chat("what", "it is")]), words)
    use = found.facts.tokens
    counts = dict(zip(use.ids.tolist(), use.counts.tolist(), strict=True))
    first = dict(zip(use.ids.tolist(), use.first.tolist(), strict=True))
    assert use.sequences == 2
    assert counts[6] == counts[7] == 4
    assert first[6] == 2
    assert sum(first.values()) == 2
    assert use.names == {6: "<|im_start|>", 7: "<|im_end|>"}
    assert use.pad_id == 0


def test_conversations_from_and_value_are_the_same_chat(tmp_path, words):
    other = {
        "conversations": [{"from": "human", "value": "what is the answer"}, {"from": "gpt", "value": "it is forty two"}]
    }
    one, two = (read(jsonl(tmp_path / f"{i}.jsonl", [row]), words) for i, row in enumerate([chat(), other]))
    np.testing.assert_array_equal(one.facts.tokens.counts, two.facts.tokens.counts)


def test_all_tokens_of_a_chat_but_the_first_are_supervised_unless_the_config_says_otherwise(tmp_path, words):
    path = jsonl(tmp_path / "d.jsonl", [chat("what is", "forty two")])
    total = 1 + 3 + 1 + 3  # <|im_start|> user what is <|im_end|> ... is 5 and 5
    assert supervised(read(path, words)) == [total + 2 - 1]
    assert supervised(read(path, words, supervision=Supervision(assistant_only=True))) == [2]


def test_an_answer_beyond_the_length_limit_leaves_nothing_supervised(tmp_path, words):
    path = jsonl(tmp_path / "d.jsonl", [chat("what " * 20, "forty"), chat("what", "forty two")])
    limit = Supervision(assistant_only=True, max_length=10)
    assert supervised(read(path, words, supervision=limit)) == [0, 2]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "what is ", "completion": "forty two"},
        {"instruction": "what", "input": "is", "output": "forty two"},
        {"instruction": "what is", "output": "forty two"},
        {
            "prompt": [{"role": "user", "content": "what is"}],
            "completion": [{"role": "assistant", "content": "forty two"}],
        },
    ],
)
def test_only_the_completion_counts_by_default(tmp_path, words, row):
    path = jsonl(tmp_path / "d.jsonl", [row])
    assert supervised(read(path, words)) == [2]
    assert supervised(read(path, words, supervision=Supervision(completion_only=False)))[0] > 2
    assert supervised(read(path, words, supervision=Supervision(max_length=2))) == [0]


def test_an_empty_answer_supervises_nothing(tmp_path, words):
    assert supervised(read(jsonl(tmp_path / "d.jsonl", [{"prompt": "what is", "completion": ""}]), words)) == [0]


def test_text_rows_and_the_bos_that_a_tokenizer_adds(tmp_path, words, words_with_bos):
    path = jsonl(tmp_path / "d.jsonl", [{"text": "what is the answer"}, {"text": "what"}, {"text": ""}])
    assert supervised(read(path, words)) == [3, 0, 0]
    with_bos = read(path, words_with_bos)
    assert supervised(with_bos) == [4, 1, 0]
    assert with_bos.facts.tokens.first[with_bos.facts.tokens.ids == 1] == [3]


def test_tokenised_rows_need_no_tokenizer_and_shifted_labels_are_counted(tmp_path):
    rows = [
        {"input_ids": [5, 6, 7], "labels": [5, -100, 7]},
        {"input_ids": [5, 6, 7], "labels": [5, -100, -100]},  # label 0 is nobody's target
        {"input_ids": [9, 9, 9]},
        {"input_ids": [5]},
    ]
    found = read(jsonl(tmp_path / "d.jsonl", rows))
    assert supervised(found) == [1, 0, 2, 0]
    assert dict(zip(found.facts.tokens.ids.tolist(), found.facts.tokens.counts.tolist(), strict=True)) == {
        5: 3,
        6: 2,
        7: 2,
        9: 3,
    }


def test_masked_padding_is_no_use_of_a_token_but_still_a_first_position(tmp_path):
    found = read(jsonl(tmp_path / "d.jsonl", [{"input_ids": [0, 0, 5, 6], "attention_mask": [0, 0, 1, 1]}]))
    use = found.facts.tokens
    assert use.ids.tolist() == [0, 5, 6]
    assert use.counts.tolist() == [0, 1, 1]
    assert use.first.tolist() == [1, 0, 0]


def test_lines_of_rows_are_kept_across_blank_lines(tmp_path):
    path = tmp_path / "d.jsonl"
    path.write_text('\ufeff\n{"input_ids": [1, 2]}\n\n{"input_ids": [1]}\n')
    assert read(path).facts.labels.row_lines.tolist() == [2, 4]


def test_a_json_list_reads_like_lines(tmp_path, words):
    rows = [chat(), {"text": "what is"}]
    (tmp_path / "d.json").write_text(json.dumps(rows, indent=1))
    listed, lines = read(tmp_path / "d.json", words), read(jsonl(tmp_path / "d.jsonl", rows), words)
    assert supervised(listed) == supervised(lines)
    np.testing.assert_array_equal(listed.facts.tokens.counts, lines.facts.tokens.counts)


def test_plain_text_is_counted_and_has_no_labels_of_its_own(tmp_path, words):
    (tmp_path / "d.txt").write_text("what is the answer\n\nforty two\n")
    found = read(tmp_path / "d.txt", words)
    assert found.facts.tokens.sequences == 2
    assert found.facts.labels is None
    assert [entry.input for entry in found.not_checked] == ["labels"]


def test_packed_rows_do_not_stand_alone(tmp_path, words):
    found = read(jsonl(tmp_path / "d.jsonl", [{"text": "what"}]), words, supervision=Supervision(packing=True))
    assert found.facts.labels is None


@pytest.mark.parametrize("row", [chat(), {"text": "what"}, {"prompt": "a", "completion": "b"}])
def test_text_without_a_tokenizer_is_not_checked(tmp_path, row):
    found = read(jsonl(tmp_path / "d.jsonl", [row]), None, why_no_tokenizer="because")
    assert found.facts.tokens is None
    assert "because" in found.not_checked[0].why


def test_messages_without_a_template_are_not_checked(tmp_path):
    bare = load(worlds.add_tokenizer(tmp_path / "t", chat_template=None))
    found = read(jsonl(tmp_path / "d.jsonl", [chat()]), bare)
    assert "no chat template" in found.not_checked[0].why


def test_a_template_that_rewrites_the_words_claims_nothing_missing(tmp_path):
    template = "{{ messages[1].content | replace('it', 'the') }} please help me"
    words = load(worlds.add_tokenizer(tmp_path / "t", chat_template=template))
    found = read(jsonl(tmp_path / "d.jsonl", [chat()]), words, supervision=Supervision(assistant_only=True))
    assert supervised(found) == [6]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("{", "line 2: not JSON (Expecting property name enclosed in double quotes at character 3)"),
        ("[1]", "line 2: expected a JSON object, found a list"),
        ('{"a": 1}', "line 2: no form that is known here, found a"),
        ("{}", "found nothing"),
        ('{"messages": 3}', "messages: expected a list"),
        ('{"messages": [3]}', "message 1: expected role and content"),
        ('{"messages": [{"role": "user"}]}', "message 1: expected role and content as text"),
        ('{"text": 3}', "text: expected text, found a number"),
        ('{"prompt": "a", "completion": null}', "completion: expected text, found nothing"),
        ('{"input_ids": [1.5]}', "input_ids: expected a list of whole numbers"),
        ('{"input_ids": [true]}', "input_ids: expected a list of whole numbers"),
        ('{"input_ids": [-1]}', "token id -1"),
        ('{"input_ids": [1, 99999999999999999999]}', "token id 99999999999999999999"),
        ('{"input_ids": [1, 2], "labels": [1]}', "labels: 1 values for 2 input_ids"),
        ('{"text": "\\ud800"}', "half of a surrogate pair"),
        ("[" * 100_000, "line 2: not JSON (nested too deeply)"),
    ],
)
def test_a_bad_line_is_named(tmp_path, words, line, expected):
    path = tmp_path / "d.jsonl"
    path.write_text('{"input_ids": [1, 2]}\n' + line + "\n")
    with pytest.raises(UnreadableInput) as caught:
        read(path, words)
    text = one_line(caught.value)
    assert text.startswith(f"{path}: line 2")
    assert expected in text


def test_a_line_that_is_not_utf8_is_named(tmp_path, words):
    (tmp_path / "d.jsonl").write_bytes(b'{"text": "what"}\n{"text": "\xff"}\n')
    with pytest.raises(UnreadableInput, match="line 2: byte 10: not UTF-8"):
        read(tmp_path / "d.jsonl", words)


def test_a_conversation_that_the_template_refuses_is_named(tmp_path):
    words = load(worlds.add_tokenizer(tmp_path / "t", chat_template="{{ raise_exception('roles must\nalternate') }}"))
    with pytest.raises(UnreadableInput, match=r"line 1: refused by the chat template \(roles must alternate\)"):
        read(jsonl(tmp_path / "d.jsonl", [chat()]), words)


@pytest.mark.parametrize("content", [b"", b"\n \n", b"[]"])
def test_no_rows_are_unreadable(tmp_path, content):
    (tmp_path / "d.json").write_bytes(content)
    with pytest.raises(UnreadableInput, match="no rows"):
        read(tmp_path / "d.json")


def test_absent_files_directories_and_other_formats_are_unreadable(tmp_path):
    (tmp_path / "d.parquet").write_bytes(b"PAR1....")
    for path in (tmp_path / "absent", tmp_path, tmp_path / "d.parquet"):
        with pytest.raises(UnreadableInput) as caught:
            read(path)
        assert str(path) in one_line(caught.value)


@given(st.lists(st.lists(st.integers(0, 300), max_size=40), min_size=1, max_size=30), st.integers(1, 12))
def test_the_census_is_a_census_whatever_the_batch(rows, limit):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenised, "BATCH", 4)
        patch.setattr(tokenised, "FLUSH_TOKENS", 25)
        path = jsonl(Path(folder) / "d.jsonl", [{"input_ids": row} for row in rows])
        found = read(path, supervision=Supervision(max_length=limit)).facts
    cut = [row[:limit] for row in rows]
    assert dict(zip(found.tokens.ids.tolist(), found.tokens.counts.tolist(), strict=True)) == Counter(chain(*cut))
    assert int(found.tokens.first.sum()) == sum(1 for row in cut if row)
    assert found.labels.supervised.tolist() == [max(0, len(row) - 1) for row in cut]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "from", "value", "text", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
KEYS = [
    "messages",
    "conversations",
    "prompt",
    "completion",
    "instruction",
    "input",
    "output",
    "text",
    "input_ids",
    "labels",
    "attention_mask",
]


@given(st.lists(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4), min_size=1, max_size=3))
def test_rows_of_anything_are_read_or_refused_in_one_line(words, rows):
    with tempfile.TemporaryDirectory() as folder:
        path = jsonl(Path(folder) / "d.jsonl", rows)
        try:
            found = read(path, words)
        except UnreadableInput as error:
            line = one_line(error).removeprefix(f"{path}: ")
            if not line.startswith("line "):
                raise
        else:
            assert found.facts.tokens.sequences == len(rows)


@given(st.binary(max_size=120))
def test_bytes_of_anything_are_read_or_refused_in_one_line(words, raw):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "d.jsonl"
        path.write_bytes(raw)
        try:
            read(path, words)
        except UnreadableInput as error:
            one_line(error)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 4)), max_size=12),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=5),
)
def test_supervised_tokens_are_those_that_share_a_character_with_a_target(tokens, steps):
    spans = [(start, start + length) for start, length in tokens]
    targets, end = [], 0
    for gap, length in steps:
        targets.append((end + gap, end + gap + length))
        end += gap + length
    expected = sum(any(start < b and stop > a for a, b in targets) for start, stop in spans)
    assert tokenised._overlapping(spans, targets) == expected


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "what is ", "chosen": "forty two", "rejected": "it"},
        {"chosen": chat("what is", "forty two")["messages"], "rejected": chat("what is", "it")["messages"]},
        {
            "prompt": chat("what is")["messages"][:1],
            "chosen": [{"role": "assistant", "content": "forty two"}],
            "rejected": [{"role": "assistant", "content": "it"}],
        },
    ],
)
def test_both_answers_of_a_preference_pair_are_sequences_of_their_own(tmp_path, words, row):
    found = read(jsonl(tmp_path / "d.jsonl", [row]), words)
    assert supervised(found) == [2, 1]
    assert found.facts.labels.row_lines.tolist() == [1, 1]
    assert found.facts.tokens.sequences == 2


@pytest.mark.parametrize(("template", "supervised"), [("assistant", 5), ("### Answer:", 0)])
def test_a_response_template_supervises_what_follows_its_last_occurrence(tmp_path, words, template, supervised):
    path = jsonl(tmp_path / "d.jsonl", [chat(), chat()])
    found = read(path, words, supervision=Supervision(response_template=template)).facts
    assert found.labels.supervised.tolist() == [supervised, supervised]


def test_what_truncation_takes_is_counted_and_said(tmp_path, words):
    rows = [{"prompt": "what is the answer", "completion": "it is forty two"}] * 4
    whole = read(jsonl(tmp_path / "d.jsonl", rows), words)
    cut = read(jsonl(tmp_path / "d.jsonl", rows), words, supervision=Supervision(max_length=5))
    assert cut.facts.labels.whole.tolist() == supervised(whole)
    assert cut.facts.labels.lengths.tolist() == whole.facts.labels.lengths.tolist()
    assert supervised(cut) < supervised(whole)
    (line,) = cut.understood
    assert "4 rows, 4 of them cut to 5 tokens" in line
