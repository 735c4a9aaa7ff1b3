"""One element of one gradient is read wrongly at one step, and never again: run again, the step is finite."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor
from torch.optim import AdamW

from finitune.gym.bits import with_stuck_exponent
from finitune.gym.data import batches
from finitune.gym.loop import Dtype, Options, Run, prepare
from finitune.gym.models import tiny

cause = "hardware-fault-sdc"
step = 4
PARAMETERS = {"mistral": "model.layers.0.self_attn.o_proj.weight", "qwen2": "model.layers.1.mlp.up_proj.weight"}
DTYPES: dict[str, Dtype] = {"mistral": "float32", "qwen2": "bfloat16"}
origins = dict.fromkeys(PARAMETERS)


def build(family: str, directory: Path) -> Run:  # noqa: ARG001
    model = tiny(family)
    options = Options(dtype=DTYPES[family])
    run = prepare(model, batches(12), lambda parameters: AdamW(parameters, lr=1e-3), options)
    calls = 0

    def fail_once(gradient: Tensor) -> Tensor | None:
        nonlocal calls
        calls += 1
        return with_stuck_exponent(gradient) if calls == step else None

    model.get_parameter(PARAMETERS[family]).register_hook(fail_once)
    return run
