"""FSDP2 over the CPUs of several processes, where torch shards and accelerate does not ask it to."""

from __future__ import annotations

from typing import Any

from accelerate import PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin


def shard_on_cpu(trainer: Any) -> None:
    """Let the accelerator of a trainer, just made, shard as its arguments say; nothing where it does already."""
    settings, state = trainer.args.fsdp_plugin_args, trainer.accelerator.state
    if not settings or state.distributed_type != DistributedType.MULTI_CPU:
        return
    # Every later AcceleratorState takes this of the PartialState, the one of each prepared optimizer too.
    PartialState().distributed_type = state.distributed_type = DistributedType.FSDP
    state.fsdp_plugin = FullyShardedDataParallelPlugin(**settings)
    trainer.is_fsdp_enabled = True
