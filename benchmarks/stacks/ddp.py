"""DistributedDataParallel over two processes; the fault is on the second one alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from _scenario import Scenario, TinyLM, main

VARIANTS = ("2 ranks",)
PROCESSES = 2


def run(scenario: Scenario) -> None:
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scenario.plant(model.module)
    scenario.watch(model, optimizer)
    file = scenario.checkpoint / "training.pt"
    if scenario.resume:
        saved = torch.load(file, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for step in range(scenario.first, scenario.until + 1):
        batch = scenario.batches()[step - 1]
        loss = scenario.loss(model(batch["input_ids"]), batch["labels"])
        loss.backward()
        scenario.spoil_late(model.module.blocks[0].down_proj.weight)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scenario.shows(step, loss=loss.item())
        scenario.stepped(step, model, optimizer)
    scenario.checkpoint.mkdir(exist_ok=True)
    if scenario.rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    dist.barrier()
    scenario.finish([file])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(run)
