"""Tokens that stand alone: the same numbers as the model itself gives, and nothing for a model of another layout."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.sources import worlds

from finitune.facts import Batching, Optimizer, TokenUse, Vocabulary
from finitune.sources.weights import checkpoint, first_token


def ids(*values):
    return np.array(values, dtype=np.int64)


@pytest.fixture
def decoder(tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.Qwen2Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, initializer_range=0.4, tie_word_embeddings=False,
    )  # fmt: skip
    model = transformers.Qwen2ForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            layer.input_layernorm.weight.uniform_(0.5, 2)
            layer.self_attn.k_proj.bias.fill_(3)
    model.save_pretrained(tmp_path / "m")
    return model, tmp_path / "m"


def test_the_peaks_are_those_of_the_model(decoder):
    import torch

    model, directory = decoder
    seen: dict[str, float] = {}
    for number, layer in enumerate(model.model.layers):
        at = f"model.layers.{number}"
        layer.mlp.down_proj.register_forward_hook(
            lambda _m, given, out, at=at: seen.update(
                {f"{at}.mlp gate * up": float(given[0].abs().max()), f"{at}.mlp output": float(out.abs().max())}
            )
        )
        layer.register_forward_hook(
            lambda _m, _given, out, at=at: seen.update(
                {f"{at} residual": float((out[0] if isinstance(out, tuple) else out).abs().max())}
            )
        )
    with torch.no_grad():
        model(input_ids=torch.tensor([[5]]))
    found = checkpoint.activations(directory, ids(5), None)
    peaks = {f"{p.module} {p.what}": p.value for p in found.first if p.what != "query . key"}
    assert peaks == pytest.approx(seen, rel=1e-4)
    assert {p.token for p in found.first} == {5}
    assert not found.padding

    attention, layer = model.model.layers[0].self_attn, model.model.layers[0]
    x = layer.input_layernorm(model.model.embed_tokens(torch.tensor([5])))
    query, key = attention.q_proj(x).view(4, 8), attention.k_proj(x).view(2, 8).repeat_interleave(2, 0)
    score = next(p.value for p in found.first if p.what == "query . key")
    assert score == pytest.approx(float((query * key).sum(1).abs().max().detach()), rel=1e-4)


def test_the_padding_token_stands_by_itself(decoder):
    found = checkpoint.activations(decoder[1], ids(5, 9), 3)
    alone_with_pad = checkpoint.activations(decoder[1], ids(), 3)
    assert [p.value for p in found.padding] == pytest.approx([p.value for p in alone_with_pad.padding], rel=1e-5)
    assert {p.token for p in found.padding} == {3}
    assert {p.token for p in found.first} <= {5, 9}


@pytest.mark.parametrize("change", [{"hidden_act": "gelu"}, {"scale_emb": 12}, {"num_attention_heads": None}])
def test_another_layout_is_not_computed(decoder, change):
    file = decoder[1] / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert checkpoint.activations(decoder[1], ids(5), None) is None


def test_a_model_with_parts_missing_is_not_computed(tmp_path):
    assert checkpoint.activations(worlds.model(tmp_path / "m"), ids(5), None) is None


def test_which_tokens_are_looked_at():
    tokens = TokenUse(ids=ids(0, 4, 5, 6), counts=ids(9, 9, 9, 9), first=ids(0, 1, 7, 0), sequences=8)
    words = Vocabulary(pad_id=0)
    first, pad = first_token.tokens_of(tokens, words, None, None)
    assert (first.tolist(), pad) == ([5, 4], 0)
    assert first_token.tokens_of(tokens, words, Batching(packing=True), None)[1] is None
    assert first_token.tokens_of(tokens, words, None, Optimizer(batch=1))[1] is None
    assert first_token.tokens_of(None, None, None, None)[1] is None
