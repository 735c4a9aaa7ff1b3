"""One activation is read wrongly at one step, in the forward, and never again: run again, the step is finite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import AdamW

from finitune.gym.bits import with_stuck_exponent
from finitune.gym.data import batches
from finitune.gym.loop import Run, prepare
from finitune.gym.models import tiny

cause = "hardware-fault-sdc"
step = 6
MODULES = {"llama": "model.layers.1.input_layernorm", "gpt2": "transformer.h.1.ln_1"}
origins = dict.fromkeys(MODULES)


def build(family: str, directory: Path) -> Run:  # noqa: ARG001
    model = tiny(family)
    calls = 0

    def fail_once(module: nn.Module, args: Any, output: Tensor) -> Tensor | None:  # noqa: ARG001
        nonlocal calls
        calls += 1
        if calls == step:
            output.data = with_stuck_exponent(output)

    model.get_submodule(MODULES[family]).register_forward_hook(fail_once)
    return prepare(model, batches(12), lambda parameters: AdamW(parameters, lr=1e-3))
