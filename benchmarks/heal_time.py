"""The time from a bad step to the next good one, of a LoRA run: split into capture, locate, prove and cure.

    python benchmarks/heal_time.py [HIDDEN LAYERS VOCABULARY]     by default 768 12 16000, 91 million parameters

A llama in float32 with LoRA on every projection, batches of 4 samples of 128 positions, clipped at 1.0; at one step the
features of one sample are lost. Printed is what finitune says of its time, and the wall time from the last good step
to the next one; both also in ordinary steps, which depend less on the machine.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from finitune.gym.data import batches
from finitune.gym.models import tiny
from finitune.monitor.watch import watch
from finitune.recording import Recording

STEPS, BAD, RATE = 10, 8, 2e-4
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def model_of(hidden: int, layers: int, vocabulary: int) -> Any:
    base = tiny("llama", hidden=hidden, layers=layers, vocabulary=vocabulary, attn_implementation="sdpa")
    torch.manual_seed(0)
    return get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules=TARGETS))


def main() -> None:
    hidden, layers, vocabulary = map(int, sys.argv[1:4] or (768, 12, 16000))
    model = model_of(hidden, layers, vocabulary)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=RATE)
    whole = sum(p.numel() for p in model.parameters())
    print(f"{whole / 1e6:.0f} million parameters, {sum(p.numel() for p in trained) / 1e6:.1f} of them trained")
    ended: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        with watch(model, optimizer, run_dir=Path(directory) / "run", mode="heal"):
            for step, batch in enumerate(batches(STEPS, rows=4, length=128, vocabulary=vocabulary), 1):
                with torch.no_grad():
                    features = model.get_input_embeddings()(batch["input_ids"])
                if step == BAD:
                    features[2] = torch.nan
                model(inputs_embeds=features, labels=batch["labels"]).loss.backward()
                nn.utils.clip_grad_norm_(trained, 1.0)
                optimizer.step()
                optimizer.zero_grad()
                ended.append(time.perf_counter())
        done = Recording.load(Path(directory) / "run").events("remedy")
    taken = [b - a for a, b in pairwise(ended)]
    usual = statistics.median(taken[: BAD - 2])
    for one in done:
        if one["state"] == "advice":
            print(f"step {one['step']}: {one['text']}")
            continue
        split = ", ".join(f"{part} {one['seconds_of'][part]:.2g}" for part in ("capture", "locate", "prove", "cure"))
        print(f"step {one['step']}: {one['remedy']}, {one['state']}: {one['seconds']:.1f} s ({split})")
    bad = taken[BAD - 2]
    print(f"{bad:.1f} s from the last good step to the next, {bad / usual:.0f} ordinary steps of {usual:.2f} s")


if __name__ == "__main__":
    main()
