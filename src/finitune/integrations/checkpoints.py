"""Writers of checkpoints that a program imports after torch: they are observed as soon as they are there.

See `finitune.monitor.checkpoints`.
"""

from __future__ import annotations

from finitune.monitor.process import active

AFTER = ("safetensors.torch", "torch.distributed.checkpoint.state_dict_saver")


def attach() -> None:
    """Observe the writers that have been imported."""
    monitor = active()
    if monitor is not None:
        monitor.observe_writers()
