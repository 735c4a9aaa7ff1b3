"""A decoder's forward pass on single tokens, each a sequence of its own, in float32 and from the files alone.

With one position the softmax of attention is 1, so the pass is a few products per layer, and exact: this is what the
model computes at the first token of a sequence. Decoders in the layout of Llama (Mistral, Qwen2, Yi, TinyLlama).
Weights are read in blocks of rows, so that memory stays small.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from finitune.facts import Activations, Batching, Ints, Optimizer, TokenUse, Vocabulary
from finitune.naming import ActivationPeak
from finitune.sources.text import real, section, whole, word
from finitune.sources.weights.safetensors import TORCH_NAMES, Tensor, read_rows

Values = Any
"""A float32 array [tokens, columns]."""
MAX_FIRST = 8
"""So many of the tokens that begin sequences are looked at, the commonest first."""
BLOCK_BYTES = 2**22
PARTS = {
    "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
    "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
}  # fmt: skip
NEUTRAL = {"self_attn.rotary_emb.inv_freq"}
MULTIPLIERS = ("scale_emb", "scale_depth", "embedding_multiplier", "residual_multiplier", "attention_multiplier")
"""Settings of decoders that have the names of Llama and compute something else."""
_LAYER = re.compile(r"\A(.{0,200}\blayers)\.(\d{1,9})\.(.{1,200}?)(?:\.(?:weight|bias))?$")


def tokens_of(
    tokens: TokenUse | None, vocabulary: Vocabulary | None, batching: Batching | None, optimizer: Optimizer | None
) -> tuple[Ints, int | None]:
    """The ids that begin sequences, and the id that pads them where rows are padded at all."""
    first = np.zeros(0, dtype=np.int64)
    if tokens is not None:
        order = np.argsort(-tokens.first, kind="stable")[:MAX_FIRST]
        first = tokens.ids[order][tokens.first[order] > 0]
    packed = batching is not None and batching.packing
    single = optimizer is not None and optimizer.batch == 1
    pad = vocabulary.pad_id if vocabulary is not None and not packed and not single else None
    return first, pad


def read(
    tensors: Sequence[Tensor], config: Mapping[str, Any], file: str, embedding: Tensor, first: Ints, pad: int | None
) -> Activations | None:
    """The largest values that these tokens reach; None for a decoder of another layout."""
    layers = _layers(tensors)
    inner = next((part for key in ("text_config", "llm_config") if (part := section(config, key))), config)
    heads = whole(inner, "num_attention_heads", file)
    if (
        not layers
        or not heads
        or word(inner, "hidden_act") not in (None, "silu")
        or any(k in inner for k in MULTIPLIERS)
    ):
        return None
    eps = real(inner, "rms_norm_eps", file) or 1e-6
    begin = [token for token in first.tolist() if token < embedding.shape[0]]
    ids = begin + ([pad] if pad is not None and 0 <= pad < embedding.shape[0] else [])
    if not ids:
        return None
    hidden = np.concatenate([read_rows(embedding, token, 1) for token in ids])
    peaks: tuple[list[ActivationPeak], list[ActivationPeak]] = ([], [])
    with np.errstate(over="ignore", invalid="ignore"):
        for name, layer in layers:
            for place, what, values in _layer(layer, hidden, heads, eps):
                sizes = np.nan_to_num(np.abs(values).max(axis=1), nan=np.inf)
                for group, start, stop in zip(peaks, (0, len(begin)), (len(begin), len(ids)), strict=True):
                    if stop > start:
                        worst = start + int(sizes[start:stop].argmax())
                        module = f"{name}.{place}".rstrip(".")
                        group.append(
                            ActivationPeak(module=module, what=what, token=ids[worst], value=float(sizes[worst]))
                        )
    return Activations(first=peaks[0], padding=peaks[1], ids=np.array(ids, dtype=np.int64), source=file)


def _layers(tensors: Sequence[Tensor]) -> list[tuple[str, dict[str, Tensor]]]:
    """The layers in order, each with its tensors by name; none when any has other parts than Llama's."""
    found: dict[tuple[str, int], dict[str, Tensor]] = {}
    for tensor in tensors:
        match = _LAYER.fullmatch(tensor.name)
        if match and match[3] not in NEUTRAL:
            name = match[3] + (".bias" if tensor.name.endswith(".bias") else "")
            found.setdefault((match[1], int(match[2])), {})[name] = tensor
    # other towers of the same model have layers too
    decoders = {stack for (stack, _), parts in found.items() if {p.removesuffix(".bias") for p in parts} == PARTS}
    if len(decoders) != 1:
        return []
    (stack,) = decoders
    numbers = sorted(number for other, number in found if other == stack)
    valid = all(
        {p.removesuffix(".bias") for p in found[stack, n]} == PARTS
        and all(t.dtype in TORCH_NAMES for t in found[stack, n].values())
        for n in numbers
    )
    return (
        [(f"{stack}.{n}", found[stack, n]) for n in numbers] if valid and numbers == list(range(len(numbers))) else []
    )


def _layer(layer: dict[str, Tensor], hidden: Values, heads: int, eps: float) -> Iterator[tuple[str, str, Values]]:
    """Advance `hidden` [tokens, width] by one layer, in place; yields place, name and values of what is stored."""
    x = _norm(hidden, layer["input_layernorm"], eps)
    query, key, value = (_times(layer, f"self_attn.{name}_proj", x) for name in "qkv")
    if query.shape[1] % heads or key.shape[1] % (query.shape[1] // heads):
        return
    size = query.shape[1] // heads
    shared = heads // (key.shape[1] // size)
    by_head = (len(x), -1, size)
    # A rotation turns query and key of the same position alike.
    yield (
        "self_attn",
        "query . key",
        (np.reshape(query, by_head) * np.repeat(np.reshape(key, by_head), shared, axis=1)).sum(axis=2),
    )
    hidden += _times(layer, "self_attn.o_proj", _joined(value, by_head, shared))
    x = _norm(hidden, layer["post_attention_layernorm"], eps)
    gate = _times(layer, "mlp.gate_proj", x)
    product: Values = gate / (1 + np.exp(-gate)) * _times(layer, "mlp.up_proj", x)
    yield "mlp", "gate * up", product
    out = _times(layer, "mlp.down_proj", product)
    yield "mlp", "output", out
    hidden += out
    yield "", "residual", hidden


def _joined(value: Values, by_head: tuple[int, int, int], shared: int) -> Values:
    """The values of all heads, side by side; `shared` query heads use the same one."""
    return np.reshape(np.repeat(np.reshape(value, by_head), shared, axis=1), (by_head[0], -1))


def _norm(hidden: Values, weight: Tensor, eps: float) -> Values:
    scale = _vector(weight)
    return hidden / np.sqrt((hidden**2).mean(axis=1, keepdims=True) + eps) * scale


def _times(layer: dict[str, Tensor], name: str, x: Values) -> Values:
    """Values [tokens, columns] times the transpose of a matrix [rows, columns], plus its bias."""
    weight, bias = layer[name], layer.get(f"{name}.bias")
    rows, columns = weight.shape
    step = max(1, BLOCK_BYTES // (4 * columns))
    blocks: list[Values] = [
        x @ np.transpose(read_rows(weight, at, min(step, rows - at))) for at in range(0, rows, step)
    ]
    product = np.concatenate(blocks, axis=1)
    return product if bias is None else product + _vector(bias)


def _vector(tensor: Tensor) -> Values:
    return read_rows(_as_matrix(tensor), 0, 1)[0]


def _as_matrix(tensor: Tensor) -> Tensor:
    return dataclasses.replace(tensor, shape=(1, tensor.shape[0]))
