"""The embedding of the input tokens, and how many tokens a model chooses between."""

from __future__ import annotations

from torch import Tensor, nn


def input_embedding(model: nn.Module) -> nn.Embedding | None:
    """The embedding of the input tokens: what the model says, else the first one."""
    getter = getattr(model, "get_input_embeddings", None)
    try:
        found = getter() if callable(getter) else None
    except NotImplementedError:
        found = None
    if isinstance(found, nn.Module) and isinstance(getattr(found, "weight", None), Tensor):
        return found  # pyright: ignore[reportReturnType]
    return next((m for m in model.modules() if isinstance(m, nn.Embedding)), None)


def vocabulary_size(model: nn.Module) -> int | None:
    """How many tokens the model chooses between; None where it is not seen to predict tokens."""
    getter = getattr(model, "get_output_embeddings", None)
    try:
        head = getter() if callable(getter) else None
    except NotImplementedError:
        head = None
    embedding = input_embedding(model)
    if head is None and embedding is not None:  # tied, or a model of the user's own
        linear = (m for m in model.modules() if isinstance(m, nn.Linear))
        head = next((m for m in linear if m.out_features == embedding.num_embeddings), None)
    weight = getattr(head, "weight", None)
    return weight.shape[0] if isinstance(weight, Tensor) else None
