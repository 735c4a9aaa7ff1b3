"""Make the tokenizer and the embedding agree: the tokenizer that belongs to the model, or a larger embedding.

## What it changes

Either the tokenizer files are replaced by those that were published with these weights, or
`model.resize_token_embeddings(len(tokenizer))` adds rows before the optimizer or engine is made.

## When it is safe

The right tokenizer is always safe. New rows are untrained: give them a sensible start, train embedding and output
head, and save both with the adapter.

## References

InternRobotics/PointLLM#46, pytorch/torchtitan#1495, longyuewangdcu/Chinese-Llama-2#4 (added_tokens.json was missing).
"""

from __future__ import annotations

safety = "advice"
