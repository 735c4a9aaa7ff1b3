"""A model that talks to other ranks in its own forward is run again by no rank alone: nobody waits for ever."""

from __future__ import annotations

import pytest
from tests.monitor.test_ranks import STEPS, two_ranks

from finitune.recording import Recording

SCRIPT = """
import json, sys
import torch, torch.distributed as dist
from torch import nn
import finitune

torch.set_num_threads(1)
out, steps = sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)


class Counts(nn.Linear):
    def forward(self, x):
        tokens = torch.ones(1)
        with torch.no_grad():
            dist.all_reduce(tokens)  # of the global batch
        return super().forward(x) / tokens


model = nn.Sequential(nn.Linear(6, 16), Counts(16, 3))
trained = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(trained.parameters(), lr=1e-2)
generator = torch.Generator().manual_seed(rank)
history = []
with finitune.watch(trained, optimizer, run_dir=out + "/run"):
    for step in range(1, steps + 1):
        x, y = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
        if step == 3 and rank == 1:
            y = torch.full_like(y, -100)
        nn.functional.cross_entropy(trained(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        history.append(sum(p.double().sum().item() for p in model.parameters()))
with open(f"{out}/history{rank}.json", "w") as file:
    json.dump(history, file)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_it_ends_as_it_does_unwatched_and_says_why_nothing_was_run_again(tmp_path):
    codes, said, (first, second) = two_ranks(tmp_path, {}, source=SCRIPT)
    assert codes == [0, 0], said
    assert first == second
    assert len(set(first)) == STEPS - 1, "one step is discarded on both"
    origins = Recording.load(tmp_path / "run").events("origin")
    assert any("in its own forward or backward" in (origin["why_not"] or "") for origin in origins), origins
