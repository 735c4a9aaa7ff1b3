"""A loop of one's own: AdamW, with and without clipping, and in float16 autocast with a GradScaler."""

from __future__ import annotations

import torch
from _scenario import Scenario, TinyLM, main

VARIANTS = ("fp32", "clip", "fp16-autocast")


def run(scenario: Scenario) -> None:
    model = TinyLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    half = scenario.variant == "fp16-autocast"
    scaler = torch.amp.GradScaler("cpu", enabled=half)
    scenario.plant(model)
    scenario.watch(model, optimizer)
    if scenario.resume:
        saved = torch.load(scenario.checkpoint / "training.pt", weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        scaler.load_state_dict(saved["scaler"])
    for step in range(scenario.first, scenario.until + 1):
        batch = scenario.batches()[step - 1]
        with torch.autocast("cpu", torch.float16, enabled=half):
            loss = scenario.loss(model(batch["input_ids"]), batch["labels"])
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if scenario.variant == "clip":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        scenario.shows(step, loss=loss.item())
        scenario.stepped(step, model, optimizer)
    scenario.checkpoint.mkdir(exist_ok=True)
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    torch.save(state, scenario.checkpoint / "training.pt")
    scenario.finish([scenario.checkpoint / "training.pt"])


if __name__ == "__main__":
    main(run)
