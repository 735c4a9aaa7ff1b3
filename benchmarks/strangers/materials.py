"""Tiny models and data in the formats that public programs read, drawn from one seed.

    python benchmarks/strangers/materials.py FOLDER

llama/ and bert/: weights, configuration, tokenizer; the other folders hold a data set of JSON lines each.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED, ROWS = 20261122, 64
WORDS = [
    "red", "green", "blue", "cold", "warm", "small", "large", "old", "new", "plain", "stone", "river", "tree", "bird",
    "house", "door", "road", "hill", "cloud", "rain",
]  # fmt: skip
ANSWERS = {word: WORDS[-1 - place] for place, word in enumerate(WORDS)}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }} : {{ m['content'] }} {% if m['role'] == 'assistant' %}</s> {% endif %}"
    "{% endfor %}{% if add_generation_prompt %}assistant : {% endif %}"
)
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def tokenizer(**more: Any) -> PreTrainedTokenizerFast:
    """One token per word."""
    words = [*SPECIAL, "user", "assistant", "system", ":", "opposite", "of", "is", "what", *WORDS]
    inner = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", pad_token="<pad>", model_max_length=64, **more
    )


def main(place: Path) -> None:
    torch.manual_seed(SEED)
    words = tokenizer(bos_token="<s>", eos_token="</s>")
    words.chat_template = TEMPLATE
    sizes = SIZES | {"vocab_size": len(words), "max_position_embeddings": 128}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, pad_token_id=0, bos_token_id=1, eos_token_id=2))
    for part in (words, llama):
        part.save_pretrained(place / "llama")
    bert = BertModel(BertConfig(**sizes, pad_token_id=0))
    for part in (tokenizer(cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"), bert):
        part.save_pretrained(place / "bert")

    draw = random.Random(SEED)
    asked = [draw.choice(WORDS) for _ in range(ROWS)]
    pairs = [(f"what is opposite of {word}", f"{ANSWERS[word]} is opposite of {word}") for word in asked]
    turns = [
        [{"role": "user", "content": question}, {"role": "assistant", "content": answer}] for question, answer in pairs
    ]
    lines(place / "sft", [{"messages": turn} for turn in turns])
    lines(place / "alpaca", [{"instruction": q, "input": "", "output": a} for q, a in pairs])
    (place / "alpaca" / "dataset_info.json").write_text('{"words": {"file_name": "train.jsonl"}}', encoding="utf-8")
    lines(place / "preference", [
        {"prompt": turn[:1], "chosen": turn[1:], "rejected": [{"role": "assistant", "content": "what is what"}]}
        for turn in turns
    ])  # fmt: skip
    lines(place / "prompts", [{"prompt": turn[:1]} for turn in turns])
    lines(place / "pairs", [{"anchor": q, "positive": a} for q, a in pairs])


def lines(folder: Path, rows: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True)
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
