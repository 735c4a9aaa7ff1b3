"""Reductions over ranks: a race is found, a correct one is not, and neither is a loop that does something else."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import finitune
from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

RACE = Path(__file__).parents[2] / "examples" / "medicalgpt" / "race" / "train_overlap.py"

LOOP = """
import os
import sys
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kind = sys.argv[1]
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
sparse, closes = kind == "sparse", kind == "closure"
wide, number = 16 + 8 * rank * (kind == "unlike"), torch.complex64 if closes else None
first = torch.nn.Embedding(8, 16, sparse=True) if sparse else torch.nn.Linear(8, wide, dtype=number)
model = torch.nn.Sequential(first, torch.nn.Linear(16, 4) if sparse else torch.nn.Tanh())
if kind == "expert":  # one tensor belongs to its rank alone
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["0.bias"])
whole = model if kind in ("alone", "unlike") else DistributedDataParallel(model)
optimizer = (torch.optim.SGD if sparse else torch.optim.AdamW)(model.parameters(), lr=1e-2)
if closes:  # both ranks evaluate as often
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3, tolerance_grad=0, tolerance_change=0)
torch.manual_seed(1 + rank)

def closure():
    optimizer.zero_grad()
    loss = whole(x).abs().square().mean()
    loss.backward()
    return loss

for step in range(8):
    if closes:
        x = torch.randn(4, 8, dtype=torch.complex64)
        optimizer.step(closure)
    for micro in range(0 if closes else 2):
        whole(torch.randint(8, (4,)) if sparse else torch.randn(4, 8)).square().mean().backward()
    if kind == "changed":
        for p in model.parameters():
            p.grad += 0.3 * torch.sign(p.grad)
    if not closes:
        torch.nn.utils.clip_grad_norm_(model[1:].parameters() if sparse else model.parameters(), 0.1)
        optimizer.step()
    optimizer.zero_grad()
    if rank == 0:
        print(f"{float(model[0].weight.detach().abs().sum()):.9f}")
dist.barrier()
sys.stdout.flush()
os._exit(0)  # gloo sometimes aborts while the interpreter ends
"""


def start(tmp_path, *command, watched=True):
    guard = [sys.executable, "-m", "finitune", "run", "--run-dir", str(tmp_path / "run"), "--"] if watched else []
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    source = str(Path(finitune.__file__).parents[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source}
    done = subprocess.run(
        [*guard, *ranks, *map(str, command)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.mark.slow
def test_fires_for_a_bucket_that_is_filled_again_while_it_is_sent(tmp_path):
    done = start(tmp_path, RACE, "--steps", 4)
    assert "gradients are finite and wrong" in done.stderr
    first = diagnose(tmp_path / "run").incidents[0]
    assert first.symptom == "wrong-reduction"
    assert first.causes[0].cause == "comm-overlap-race"
    assert any("the same bit for bit when run again" in evidence.text for evidence in first.causes[0].evidence)
    assert first.reproducible is False


@pytest.mark.slow
def test_stays_quiet_where_the_bucket_is_waited_for(tmp_path):
    start(tmp_path, RACE, "--steps", 4, "--wait")
    assert diagnose(tmp_path / "run").verdict == "healthy"
    errors = Recording.load(tmp_path / "run").signals["reduction_error"].values
    assert len(errors) == 3  # the first step shows that this loop reduces by itself
    assert max(errors) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "changed", "alone", "unlike", "expert", "sparse", "closure"])
def test_stays_quiet_and_bit_identical(tmp_path, kind):
    """DDP; gradients that the loop changes alike on all ranks; ranks that train for themselves, unlike models, or one
    tensor each; a tensor whose gradients are sparse; complex ones, computed several times in a step.
    """
    script = tmp_path / "loop.py"
    script.write_text(LOOP)
    watched = start(tmp_path, script, kind)
    assert diagnose(tmp_path / "run").verdict == "healthy"
    assert watched.stdout == start(tmp_path, script, kind, watched=False).stdout
    rows = (tmp_path / "run" / "rank00000.jsonl").read_text().splitlines()
    compared = [json.loads(row)["reduction_error"] for row in rows if re.search("reduction_error", row)]
    assert len(compared) == (0 if kind in ("alone", "unlike") else 5)
