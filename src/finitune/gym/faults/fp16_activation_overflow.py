"""A few MLP channels answer one kind of token with a product beyond 65504.

The weights lie within float16, and so does every activation until the token appears: then its embedding direction
lines up with the outlier channels. In bfloat16 the same run is finite.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.optim import AdamW
from transformers import PreTrainedModel

from finitune.finding import Origin
from finitune.gym.data import batches
from finitune.gym.loop import Dtype, Options, Run, prepare
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import embedding_rows, tiny

cause = "fp16-activation-overflow"
step = 4
TOKEN = 9
CHANNELS = 4
SCALE = 2.0**10  # low enough for the outlier channels' own gradients

origins = {
    "llama": Origin(module="model.layers.1.mlp", op="aten.mul", phase="forward", dtype="float16"),
    "mistral": Origin(module="model.layers.1.mlp", op="aten.mul", phase="forward", dtype="float16"),
    "gpt2": Origin(module="transformer.h.1.mlp.c_proj", op="aten.addmm", phase="forward", dtype="float16"),
}
DTYPES: dict[str, Dtype] = {"llama": "float16", "mistral": "float16-autocast", "gpt2": "float16"}


def build(family: str, directory: Path) -> Run:  # noqa: ARG001
    model = tiny(family)
    with torch.no_grad():
        plant(model, family)
    data = batches(20)
    for batch in data[step - 1 :]:
        batch["input_ids"][1, 10:12] = TOKEN
        batch["labels"][1, 10:12] = TOKEN
    options = Options(dtype=DTYPES[family], scaler=lambda: DynamicLossScaler(scale=SCALE), initial_scale=SCALE)
    return prepare(model, data, lambda parameters: AdamW(parameters, lr=1e-4), options)


def plant(model: PreTrainedModel, family: str) -> None:
    """Align a few channels of the last MLP with the token's embedding."""
    row = embedding_rows(model)[TOKEN]
    direction = row / row.norm()
    row.copy_(4 * direction)  # long enough for the residual stream to keep the direction
    if family == "gpt2":
        model.get_parameter("transformer.h.1.mlp.c_fc.weight")[:, :CHANNELS] = 4 * direction[:, None]
        model.get_parameter("transformer.h.1.mlp.c_proj.weight")[:CHANNELS, 0] = 1000
    else:
        for name in ("gate_proj", "up_proj"):
            model.get_parameter(f"model.layers.1.mlp.{name}.weight")[:CHANNELS] = 40 * direction
