"""The base model of the Yi story, made tiny: chat tokens never trained, everything that a user's script needs."""

from __future__ import annotations

import json
import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM  # noqa: E402

from finitune.demo.yi.base import Recipe, base, llama  # noqa: E402
from finitune.demo.yi.text import dialogues, read_chat  # noqa: E402

TINY = Recipe(vocabulary=400, hidden=32, layers=2, steps=6, rows=2, length=32, warm_up=2, embedding_decay=16.0)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FINITUNE_CACHE", str(tmp_path_factory.mktemp("cache")))
        first = base(TINY, lambda step, steps, loss: seen.append((step, steps, loss)))
        again = base(TINY, lambda *_: pytest.fail("a cached base is not made again"))
    assert first == again
    assert [step for step, _, _ in seen] == [1, 2, 3, 4, 5, 6]
    return first


def test_is_a_model_directory_in_bfloat16(made):
    weights = load_file(made.model / "model.safetensors")
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert {"model.embed_tokens.weight", "lm_head.weight"} <= set(weights)
    config = json.loads((made.model / "config.json").read_text())
    assert (config["rms_norm_eps"], config["tie_word_embeddings"], config["vocab_size"]) == (1e-5, False, 400)
    model = AutoModelForCausalLM.from_pretrained(made.model)
    assert model(torch.tensor([[6, 20, 21]])).logits.isfinite().all()


def test_the_chat_tokens_felt_nothing_but_the_decay(made):
    torch.manual_seed(TINY.seed)
    fresh = LlamaForCausalLM(llama(TINY)).model.embed_tokens.weight.detach()
    rows = load_file(made.model / "model.safetensors")["model.embed_tokens.weight"].float()
    rates = [TINY.embedding_lr * min(1, (s + 1) / TINY.warm_up) * (1 - s / TINY.steps) for s in range(TINY.steps)]
    left = math.prod(1 - rate * TINY.embedding_decay for rate in rates)
    assert left < 0.5
    torch.testing.assert_close(rows[[6, 7]], left * fresh[[6, 7]], rtol=1e-2, atol=1e-6)
    assert not torch.allclose(rows, left * fresh, rtol=1e-2, atol=1e-6)


def test_the_tokenizer_speaks_chatml_and_adds_nothing(made):
    tokenizer = AutoTokenizer.from_pretrained(made.model)
    assert tokenizer.convert_tokens_to_ids(["<unk>", "<|startoftext|>", "<|endoftext|>"]) == [0, 1, 2]
    assert tokenizer("if")["input_ids"][0] > 7
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    ids = tokenizer(chat)["input_ids"]
    assert (ids[0], ids[-2]) == (6, 7)
    assert tokenizer.decode(ids) == "<|im_start|>user\nhello<|im_end|>\n"


def test_the_chat_data_is_real_and_its_parts_are_disjoint(made):
    train, held_out = read_chat(made.chat), read_chat(made.evaluation)
    assert len(held_out) == 64
    assert len(train) > 300
    assert len(train) + len(held_out) == len(list(dialogues()))
    assert not {row[1]["content"] for row in train} & {row[1]["content"] for row in held_out}
    assert [message["role"] for message in train[0]] == ["user", "assistant"]


def test_a_failed_attempt_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("FINITUNE_CACHE", str(tmp_path))

    def interrupt(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        base(TINY, interrupt)
    assert list(tmp_path.iterdir()) == []
