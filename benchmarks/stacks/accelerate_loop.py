"""A loop over Accelerate, with its clipping and its checkpoint."""

from __future__ import annotations

import torch
from _scenario import Scenario, TinyLM, main
from accelerate import Accelerator

VARIANTS = ("fp32",)
NEEDS = ("accelerate",)


def run(scenario: Scenario) -> None:
    accelerator = Accelerator(cpu=True)
    model = TinyLM()
    scenario.plant(model)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    scenario.watch(model, optimizer)
    if scenario.resume:
        accelerator.load_state(str(scenario.checkpoint))
    for step in range(scenario.first, scenario.until + 1):
        batch = scenario.batches()[step - 1]
        loss = scenario.loss(model(batch["input_ids"]), batch["labels"])
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        scenario.shows(step, loss=loss.item())
        scenario.stepped(step, model, optimizer)
    accelerator.save_state(str(scenario.checkpoint))
    scenario.finish(scenario.checkpoint.glob("*"))


if __name__ == "__main__":
    main(run)
