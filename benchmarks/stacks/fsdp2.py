"""FSDP2 (`fully_shard`) over two processes; the fault is on the second one alone."""

from __future__ import annotations

import torch
import torch.distributed as dist
from _scenario import Scenario, TinyLM, main
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

VARIANTS = ("2 ranks",)
PROCESSES = 2


def run(scenario: Scenario) -> None:
    dist.init_process_group("gloo")
    model = TinyLM()
    scenario.plant(model)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scenario.watch(model, optimizer)
    file = scenario.checkpoint / "training.pt"
    if scenario.resume:
        saved = torch.load(file, weights_only=True)
        set_state_dict(
            model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"],
            options=StateDictOptions(full_state_dict=True),
        )  # fmt: skip
    for step in range(scenario.first, scenario.until + 1):
        batch = scenario.batches()[step - 1]
        loss = scenario.loss(model(batch["input_ids"]), batch["labels"])
        loss.backward()
        scenario.spoil_late(model.blocks[0].down_proj.weight)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scenario.shows(step, loss=loss.item())
        scenario.stepped(step, model, optimizer)
    scenario.checkpoint.mkdir(exist_ok=True)
    weights, state = get_state_dict(model, optimizer, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if scenario.rank == 0:
        torch.save({"model": weights, "optimizer": state}, file)
    dist.barrier()
    scenario.finish([file])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(run)
