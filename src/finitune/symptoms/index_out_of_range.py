"""An index is outside its table: a token id beyond the embedding, a label beyond the classes.

## What it means

Tokenizer and model disagree on the size of the vocabulary, tokens were added without new rows, or labels hold an id
that is no class.

## How it is seen

In a log: PyTorch's assertions `srcIndex < srcSelectDimSize` and `t >= 0 && t < n_classes`, or on the CPU `index out of
range in self` and `Target N is out of bounds`.
"""
