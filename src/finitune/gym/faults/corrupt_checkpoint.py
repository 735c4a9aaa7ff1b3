"""A checkpoint with one bit flipped on its way: a norm weight of 1.0 (0x3f800000) has become inf (0x7f800000)."""

from __future__ import annotations

import json
from pathlib import Path

from torch.optim import AdamW

from finitune.finding import Origin
from finitune.gym.data import batches
from finitune.gym.loop import Run, prepare
from finitune.gym.models import tiny

cause = "corrupt-checkpoint"
step = 1
ELEMENT = 5
EXPONENT_TOP_BIT = 0x40  # in the last byte of a little-endian float32

origins = {
    "llama": Origin(
        module="model.layers.1.post_attention_layernorm", op="parameter", phase="parameter", dtype="float32",
        tensor="model.layers.1.post_attention_layernorm.weight",
    ),
    "gpt2": Origin(
        module="transformer.h.1.ln_2", op="parameter", phase="parameter", dtype="float32",
        tensor="transformer.h.1.ln_2.weight",
    ),
}  # fmt: skip


def build(family: str, directory: Path) -> Run:
    model = tiny(family)
    model.save_pretrained(directory)
    origin = origins[family]
    assert origin.tensor
    flip_bit(directory / "model.safetensors", origin.tensor, ELEMENT)
    damaged = type(model).from_pretrained(directory, attn_implementation="eager")
    return prepare(damaged, batches(6), lambda parameters: AdamW(parameters, lr=1e-3))


def flip_bit(path: Path, tensor: str, element: int) -> None:
    """Flip the top exponent bit of one float32 element of a safetensors file, in place."""
    with path.open("r+b") as file:
        size = int.from_bytes(file.read(8), "little")
        begin = json.loads(file.read(size))[tensor]["data_offsets"][0]
        place = 8 + size + begin + 4 * element + 3
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ EXPONENT_TOP_BIT]))
