"""A tiny sentencepiece model for `torchtune_full.yaml`, of the materials' own sentences: FOLDER of materials."""

import json
import sys
from pathlib import Path

import sentencepiece

material = Path(sys.argv[1])
rows = [json.loads(line) for line in (material / "alpaca" / "train.jsonl").read_text().splitlines()]
place = material / "torchtune"
place.mkdir(exist_ok=True)
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter([f"{row['instruction']} {row['output']}" for row in rows] * 4),
    model_prefix=str(place / "tokenizer"),
    vocab_size=35,
    model_type="bpe",
    hard_vocab_limit=False,
    pad_id=3,
    byte_fallback=False,
    minloglevel=2,
)
