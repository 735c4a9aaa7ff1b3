import pytest
from tests.sources import worlds
from tests.sources.worlds import one_line

from finitune.finding import UnreadableInput
from finitune.sources.data import tokenizer as module
from finitune.sources.data.tokenizer import NoTokenizer, encode, load, names


def test_ids_special_tokens_and_words(tmp_path):
    pytest.importorskip("tokenizers")
    words = load(worlds.add_tokenizer(tmp_path))
    assert words.special == worlds.SPECIAL
    assert (words.pad_id, words.bos_id, words.eos_id) == (0, 1, 2)
    assert names(words, [6, 3, 10**6]) == {6: "<|im_start|>", 3: "<unk>"}


@pytest.mark.parametrize("bos", [False, True])
def test_a_bos_comes_only_where_the_tokenizer_adds_one(tmp_path, bos):
    pytest.importorskip("tokenizers")
    words = load(worlds.add_tokenizer(tmp_path, bos=bos))
    (with_special,) = encode(words, ["what is"], special=True)
    (without,) = encode(words, ["what is"], special=False)
    assert (with_special.ids[0] == 1) is bos
    assert without.ids[0] != 1
    assert list(without.spans) == [(0, 4), (5, 7)]


def test_nothing_to_tokenise_with_is_missing_not_wrong(tmp_path, monkeypatch):
    with pytest.raises(NoTokenizer, match=r"no tokenizer\.json"):
        load(tmp_path)
    worlds.add_tokenizer(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(NoTokenizer, match="not installed"):
        load(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1.0"}'])
def test_a_damaged_tokenizer_is_unreadable(tmp_path, text):
    pytest.importorskip("tokenizers")
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(UnreadableInput, match="not a tokenizer") as caught:
        load(tmp_path)
    one_line(caught.value)


def test_padding_and_truncation_of_the_file_are_switched_off(tmp_path):
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer

    worlds.add_tokenizer(tmp_path)
    library = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.enable_truncation(2)
    library.enable_padding(length=10)
    library.save(str(tmp_path / "tokenizer.json"))
    (encoded,) = encode(module.load(tmp_path), ["what is the answer"], special=False)
    assert len(encoded.ids) == 4
