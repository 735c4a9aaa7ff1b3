"""Finite gradients whose squares overflow float32 are finite, on ranks as in one process."""

from __future__ import annotations

import math

import pytest
from tests.monitor.test_ranks import STEPS, two_ranks

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

SCRIPT = """
import json, os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
import finitune

torch.set_num_threads(1)
kind, out, steps = json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.Linear(6, 4)
if kind == "ddp":
    trained = nn.parallel.DistributedDataParallel(model)
else:
    fully_shard(model)
    trained = model
optimizer = torch.optim.SGD(trained.parameters(), lr=1e-24)
generator = torch.Generator().manual_seed(rank)
history = []
with finitune.watch(trained, optimizer, run_dir=out + "/run"):
    for step in range(steps):
        x, y = torch.randn(8, 6, generator=generator), torch.randint(4, (8,), generator=generator)
        loss = nn.functional.cross_entropy(trained(x), y) * 1e22
        if step == steps - 1 and rank == 1:
            loss = loss * float("nan")
        loss.backward()
        whole = [p.grad.full_tensor() if hasattr(p.grad, "full_tensor") else p.grad for p in model.parameters()]
        history.append(torch.cat([g.double().flatten() for g in whole]).norm().item())
        optimizer.step()
        optimizer.zero_grad()
with open(f"{out}/history{rank}.json", "w") as file:
    json.dump(history, file)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_ranks_look_at_the_elements_before_they_discard(kind, tmp_path):
    codes, said, (history, _) = two_ranks(tmp_path, kind, source=SCRIPT)
    assert codes == [0, 0], said
    recording = Recording.load(tmp_path / "run")
    norms = recording.signals["grad_norm"].values.tolist()
    assert norms[:-1] == pytest.approx(history[:-1], rel=1e-5)
    assert math.isnan(norms[-1])
    assert [one.step for one in diagnose(tmp_path / "run").incidents if one.level == "incident"] == [STEPS]
