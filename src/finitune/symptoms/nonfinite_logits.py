"""The logits of a forward pass are NaN or infinite.

## What it means

The weights hold NaN, a forward pass left the range of its dtype, or a copy between cards returned garbage. Sampling
fails on them; greedy decoding chooses token 0, which many tokenizers print as `!`.

## How it is seen

In a log: `probability tensor contains either inf, nan or element < 0` (PyTorch), or an output that is nothing but
sixteen or more exclamation marks.
"""
