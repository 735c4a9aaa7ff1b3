"""Name the token that fills short rows as padding token of the tokenizer.

## What it changes

One line of tokenizer_config.json, `pad_token`. The attention mask then leaves the padding out. Token ids, weights and
labels stay as they are.

## When it is safe

Where the token occurs nowhere in the data, as `<unk>` does not for a tokenizer that knows every byte: a framework that
strips padding from its texts would cut them there.

## References

ludwig-ai/ludwig#3950; add_left_padding and create_attention_mask in ludwig/utils/llm_utils.py (0.11.0).
"""

from __future__ import annotations

from finitune.facts import Batching, TokenUse, Vocabulary
from finitune.finding import Remedy

safety = "safe"


def propose(
    batching: Batching | None = None, vocabulary: Vocabulary | None = None, tokens: TokenUse | None = None
) -> Remedy:
    """The token as the tokenizer spells it where that is known, else its id."""
    token = batching.pad_id if batching else None
    if token is None:
        return Remedy()
    unknown = vocabulary is not None and vocabulary.unk_id == token
    name = (tokens.names.get(token) if tokens else None) or ("<unk>" if unknown else None)
    patch = {"pad_token": name} if name else {"pad_token_id": token}
    return Remedy(patch=patch)
