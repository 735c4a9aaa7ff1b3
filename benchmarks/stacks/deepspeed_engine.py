"""A DeepSpeed engine in bfloat16, one process, every ZeRO stage."""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # it compiles: once for all runs, not in each
import torch
from _scenario import Scenario, TinyLM, main

VARIANTS = ("zero0", "zero1", "zero2", "zero3")
NEEDS = ("deepspeed",)


def run(scenario: Scenario) -> None:
    alone()
    deepspeed.init_distributed("gloo")
    stage = int(scenario.variant[-1])
    model = TinyLM()
    scenario.plant(model)
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)
    scenario.watch(engine, optimizer)
    if scenario.resume:
        engine.load_checkpoint(str(scenario.checkpoint))
    for step in range(scenario.first, scenario.until + 1):
        batch = scenario.batches()[step - 1]
        loss = scenario.loss(engine(batch["input_ids"]), batch["labels"])
        engine.backward(loss)
        engine.step()
        scenario.shows(step, loss=loss.item())
        scenario.stepped(step, engine.module, inner(engine), more=masters(engine))
    engine.save_checkpoint(str(scenario.checkpoint))
    scenario.finish(path for path in scenario.checkpoint.rglob("*.pt"))


def alone() -> None:
    """What a launcher would set for one process; the shared-memory extension, which needs a compiler, is left out."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    for name, value in {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        os.environ.setdefault(name, str(value))
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]


def inner(engine: Any) -> Any:
    """The torch optimizer in which the moments lie."""
    own = engine.optimizer
    return getattr(own, "optimizer", own)


def masters(engine: Any) -> list[torch.Tensor]:
    """The float32 weights, and the partitions of ZeRO 3."""
    shards = [p.ds_tensor for p in engine.module.parameters() if hasattr(p, "ds_tensor")]
    return shards + [p.detach() for group in inner(engine).param_groups for p in group["params"]]


if __name__ == "__main__":
    main(run)
