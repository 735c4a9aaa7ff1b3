"""A learning rate far too high and no clipping: the loss climbs for some steps, then leaves the finite numbers.

In the llama run the loss of the bad step looks normal: the squares in RMSNorm overflow, 1/sqrt(inf) makes every
hidden state zero, and the loss is that of a guess, ln(vocabulary). Only the gradient tells.
"""

from __future__ import annotations

from pathlib import Path

from torch.optim import SGD

from finitune.finding import Origin
from finitune.gym.data import batches
from finitune.gym.loop import Dtype, Options, Run, prepare
from finitune.gym.models import tiny

cause = "lr-too-high"
step = 5

origins = {
    "llama": Origin(module="model.layers.1.input_layernorm", op="aten.pow", phase="forward", dtype="float32"),
    "gpt2": Origin(module="transformer.h.0.ln_2", op="aten.native_layer_norm", phase="forward", dtype="float32"),
    "qwen2": Origin(module="model.layers.0.self_attn.q_proj", op="aten.addmm", phase="forward", dtype="float16"),
}
RATES = {"llama": 100.0, "gpt2": 300.0, "qwen2": 20.0}
DTYPES: dict[str, Dtype] = {"llama": "float32", "gpt2": "float32", "qwen2": "float16-autocast"}


def build(family: str, directory: Path) -> Run:  # noqa: ARG001
    options = Options(dtype=DTYPES[family], clip=None, initial_scale=2.0**4)
    return prepare(tiny(family), batches(20), lambda parameters: SGD(parameters, lr=RATES[family]), options)
