"""Keras with torch as its backend: its optimizers are no torch optimizers, and are given the gradients by `apply`.

Under `finitune run` a call of it with bad gradients is not made.
"""

from __future__ import annotations

import sys

from finitune.monitor.probes.optimizer_steps import observe_class

AFTER = ("keras.src.backend.torch.optimizers.torch_optimizer",)


def attach() -> None:
    """Observe the optimizers of all models."""
    observe_class(sys.modules[AFTER[0]].TorchOptimizer, "apply")
