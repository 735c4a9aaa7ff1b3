"""Small worlds on disk for the tests of `check` and `repair`: model directories, tokenizers, data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

CHATML = "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }} <|im_end|> {% endfor %}"
VOCABULARY = 64
HIDDEN = 16
SPECIAL = {0: "<pad>", 1: "<s>", 2: "</s>", 6: "<|im_start|>", 7: "<|im_end|>"}
WORDS = [
    "user",
    "assistant",
    "system",
    "what",
    "is",
    "the",
    "answer",
    "it",
    "forty",
    "two",
    "please",
    "help",
    "me",
    "with",
    "this",
    "thing",
    "now",
]

_FIRST_BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
}

DTYPES = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32, "float64": np.float64}


def tensors(*, dtype: str = "bfloat16", seed: int = 0, tied: bool = False) -> dict[str, np.ndarray]:
    """A one-layer model in the layout of Llama; every weight is sound."""
    rng = np.random.default_rng(seed)
    shapes = {
        "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
        "model.layers.0.input_layernorm.weight": (HIDDEN,),
        "model.layers.0.post_attention_layernorm.weight": (HIDDEN,),
        "model.layers.0.self_attn.q_proj.weight": (HIDDEN, HIDDEN),
        "model.layers.0.self_attn.q_proj.bias": (HIDDEN,),
        "model.layers.0.mlp.down_proj.weight": (HIDDEN, 2 * HIDDEN),
        "model.norm.weight": (HIDDEN,),
    }
    if not tied:
        shapes["lm_head.weight"] = (VOCABULARY, HIDDEN)
    found = {name: rng.standard_normal(shape) * 0.02 for name, shape in shapes.items()}
    for name in found:
        if "norm" in name:
            found[name] = np.ones(HIDDEN)
    return {name: values.astype(DTYPES[dtype]) for name, values in found.items()}


def model(
    directory: Path,
    weights: dict[str, np.ndarray] | None = None,
    *,
    tokenizer: bool = True,
    shards: int = 1,
    **config: Any,
) -> Path:
    """A model directory with these weights (sound ones by default), a config and a tokenizer."""
    directory.mkdir(parents=True, exist_ok=True)
    weights = tensors() if weights is None else weights
    settings = {"model_type": "llama", "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": 1}
    settings |= {"rms_norm_eps": 1e-5, "tie_word_embeddings": False, **config}
    (directory / "config.json").write_text(json.dumps(settings))
    if shards == 1:
        save_file(weights, directory / "model.safetensors")
    else:
        names = sorted(weights)
        weight_map = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
        for file in set(weight_map.values()):
            save_file({n: weights[n] for n in names if weight_map[n] == file}, directory / file)
        (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    if tokenizer:
        add_tokenizer(directory)
    return directory


def add_tokenizer(directory: Path, *, chat_template: str | None = CHATML, bos: bool = False) -> Path:
    """A word-level tokenizer with special tokens; `bos` makes it put <s> in front, as Llama's does."""
    directory.mkdir(parents=True, exist_ok=True)
    free = (id_ for id_ in range(VOCABULARY) if id_ not in SPECIAL)
    vocabulary = {text: id_ for id_, text in SPECIAL.items()} | {word: next(free) for word in ["<unk>", *WORDS]}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
    tokenizer = {  # as the library `tokenizers` writes it, which is not everywhere
        "version": "1.0",
        "added_tokens": [{"id": id_, "content": text} | flags for id_, text in SPECIAL.items()],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": _FIRST_BOS if bos else None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    config = {
        "bos_token": "<s>",
        "eos_token": {"content": "</s>"},
        "pad_token": "<pad>",
        "chat_template": chat_template,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    return directory


def jsonl(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def chat(question: str = "what is the answer", answer: str = "it is forty two") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def settings(path: Path, **values: Any) -> Path:
    path.write_text(json.dumps(values))
    return path


def one_line(error: BaseException) -> str:
    """The message, which must be a single line."""
    text = str(error)
    assert "\n" not in text
    assert "Traceback" not in text
    assert not re.search(r" at 0x[0-9a-f]+>", text), "the address of an object; directories have random names"
    return text
