"""A token that was never trained comes first in the sequence, in float16 with dynamic loss scaling.

Its row has rms 1e-8, as weight decay leaves it, and becomes almost all zeros in float16. Nothing rescues position 0,
so each normalisation on the way back multiplies the gradient by up to 1/sqrt(eps) = 316.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch.optim import AdamW

from finitune.finding import Origin
from finitune.gym.data import batches
from finitune.gym.loop import Options, Run, prepare
from finitune.gym.loss_scale import DynamicLossScaler
from finitune.gym.models import embedding_rows, tiny

cause = "untrained-token-embeddings"
step = 3
TOKEN = 6
ROW_RMS = 1e-8
# At DeepSpeed's 2^16 a healthy step overflows now and then; with half or twice these scales the origin is the same.
SCALES = {"llama": 2.0**14, "mistral": 2.0**14, "qwen2": 2.0**15}

origins = {
    "llama": Origin(
        module="model.layers.1.post_attention_layernorm", op="aten._to_copy", phase="backward", dtype="float16"
    ),
    "mistral": Origin(
        module="model.layers.1.post_attention_layernorm", op="aten._to_copy", phase="backward", dtype="float16"
    ),
    "qwen2": Origin(module="model.layers.1.input_layernorm", op="aten._to_copy", phase="backward", dtype="float16"),
}


def build(family: str, directory: Path) -> Run:  # noqa: ARG001
    # Weights as large as those of a trained model, embedding rows as small: new ones amplify too little.
    model = tiny(family, layers=4, initializer_range=0.1)
    rows = embedding_rows(model)
    with torch.no_grad():
        rows.mul_(0.2)
        rows[TOKEN] = torch.randn(rows.shape[1], generator=torch.Generator().manual_seed(1)) * ROW_RMS
    data = batches(30)
    for batch in data[step - 1 :]:
        batch["input_ids"][:, 0] = TOKEN
        batch["labels"][:, 0] = TOKEN
    options = Options(dtype="float16", scaler=lambda: DynamicLossScaler(scale=SCALES[family]))
    return prepare(model, data, lambda parameters: AdamW(parameters, lr=1e-4), options)
