"""Memory and size of the recording over many steps of a small healthy training: neither may grow with the run.

    python benchmarks/endurance.py [--steps 100000] [--signals economy]

One process, a model of two layers, AdamW. The first tenth of the run fills what is kept of the steps before (windows
of signals, pools of memory); after it the resident memory stays.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

import finitune

PARTS = 10
PAGE = 4096


def resident() -> float:
    """Of this process, in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--signals", default="economy", choices=["gate", "economy", "full"])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    print(f"{'step':>8}{'resident MB':>13}{'recording MB':>14}{'ms / step':>11}")
    with tempfile.TemporaryDirectory() as directory:
        run = Path(directory) / "run"
        with finitune.watch(model, optimizer, run_dir=run, signals=arguments.signals):
            began = time.perf_counter()
            for step in range(1, arguments.steps + 1):
                loss = nn.functional.cross_entropy(model(torch.randn(8, 16)), torch.randint(4, (8,)))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                if step % (arguments.steps // PARTS) == 0:
                    size = sum(file.stat().st_size for file in run.rglob("*") if file.is_file()) / 1e6
                    spent = (time.perf_counter() - began) / (arguments.steps // PARTS) * 1e3
                    print(f"{step:8,}{resident():13.1f}{size:14.1f}{spent:11.2f}", flush=True)
                    began = time.perf_counter()


if __name__ == "__main__":
    main()
