"""Whole programs under `--mode heal`: an HF Trainer, a plain script, two ranks."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import textwrap

import pytest
from tests.monitor.test_ranks import SCRIPT, two_ranks

from finitune.diagnosis.recorded import diagnose
from finitune.recording import Recording

TRAINER = """
import sys, torch, transformers
from torch import nn

class Regression(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))

    def forward(self, features, labels=None):
        out = self.net(features)
        return {"loss": nn.functional.mse_loss(out, labels), "logits": out}

class InOrder(transformers.Trainer):
    def _get_train_sampler(self, *args, **kwargs):
        return torch.utils.data.SequentialSampler(self.train_dataset)

generator = torch.Generator().manual_seed(0)
rows = torch.randn(240, 8, generator=generator)
data = [{"features": row, "labels": row[:2] - row[2:4]} for row in rows]
if sys.argv[1] == "faulty":
    for place in (43, 44, 102):  # a cache that was cut off while it was written
        data[place]["features"] = torch.full((8,), float(sys.argv[3]))
arguments = transformers.TrainingArguments(
    output_dir=sys.argv[2], use_cpu=True, per_device_train_batch_size=8, num_train_epochs=2, logging_steps=10,
    learning_rate=1e-2, report_to=[], save_strategy="no", disable_tqdm=True,
)
trainer = InOrder(model=Regression(), args=arguments, train_dataset=data)
trainer.train()
with torch.no_grad():
    good = [row for place, row in enumerate(data) if place not in (43, 44, 102)]
    x, y = (torch.stack([row[key] for row in good]) for key in ("features", "labels"))
    print("final", float(nn.functional.mse_loss(trainer.model.net(x), y)))
"""


def run(tmp_path, *arguments, mode="heal", source=TRAINER):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source))
    done = subprocess.run(
        [sys.executable, "-m", "finitune", "run", "--mode", mode, "--run-dir", str(tmp_path / "run"), "--",
         sys.executable, str(script), *map(str, arguments)],
        capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    final = [float(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("final")]
    return done.returncode, final[0] if final else None, done.stderr


@pytest.mark.slow
def test_an_hf_trainer_learns_as_well_as_one_without_the_bad_records(tmp_path):
    for name in ("whole", "healed"):
        (tmp_path / name).mkdir()
    code, expected, err = run(tmp_path / "whole", "whole", tmp_path, 0)
    assert (code, "healed" in err) == (0, False), err
    code, final, err = run(tmp_path / "healed", "faulty", tmp_path, math.nan)
    assert code == 0, err
    assert final == pytest.approx(expected, rel=0.2)
    events = Recording.load(tmp_path / "healed" / "run").events("remedy")
    # 30 batches in an epoch: records 43 and 44 lie in the sixth, 102 in the thirteenth.
    assert [(e["remedy"], e["step"], e["state"]) for e in events] == [
        ("drop-samples", step, "for its step") for step in (6, 13, 36, 43)
    ]
    assert "samples 3-4 left out, the step is taken with the other 6 of 8" in err
    assert "healed 4 times: drop-samples, which changed that step alone (steps 6, 13, 36, 43)" in err
    assert {one.action for one in diagnose(tmp_path / "healed" / "run").incidents} == {"skipped-batch"}
    shown = subprocess.run(
        [sys.executable, "-m", "finitune", "diagnose", str(tmp_path / "healed" / "run"), "--format", "json"],
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert [one["action"] for one in json.loads(shown.stdout)["incidents"]] == ["skipped-batch"] * 4


RECORD = """x, y = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
            if faulty("record"):
                x[2] = math.nan
"""


@pytest.mark.slow
def test_two_ranks_are_healed_alike_or_not_at_all_and_nobody_waits(tmp_path):
    source = SCRIPT.replace('run_dir=out + "/run"', 'run_dir=out + "/run", mode="heal"')
    source = source.replace(RECORD.splitlines(keepends=True)[0], RECORD)
    assert 'mode="heal"' in source
    assert "x[2]" in source
    codes, said, (first, second) = two_ranks(tmp_path, {3: "record", 6: "record", 8: "gradient"}, source=source)
    assert codes == [0, 0], said
    assert first == second, "the same weights and moments after every step"
    assert all(finite for _, _, finite, _ in first)
    recording = Recording.load(tmp_path / "run")
    done = sorted((one["step"], one.get("remedy"), one["state"]) for one in recording.events("remedy"))
    assert done == [(3, "drop-samples", "for its step"), (6, "drop-samples", "for its step"), (8, None, "advice")], said
    assert not recording.events("broken")


OVERFLOWS = """
import hashlib, json, math, os, sys
import torch, torch.distributed as dist
import torch.nn.functional as F
from torch import nn
import finitune
from finitune.monitor.precision.float16_on_cpu import float16_on_cpu

torch.set_num_threads(1)
what, out, steps = json.loads(sys.argv[1]), sys.argv[2], 30
dist.init_process_group("gloo")
rank = dist.get_rank()

class Squares(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 8)

    def forward(self, x):
        return F.layer_norm(torch.square(self.up(x) * 8), x.shape[-1:]).to(x.dtype)

torch.manual_seed(0)
model = nn.Sequential(Squares(), Squares(), Squares(), nn.Linear(8, 4))
ddp = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
history = []

def digest():
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()

try:
    with float16_on_cpu(), finitune.watch(ddp, optimizer, run_dir=out + "/run", mode="heal"):
        for step in range(1, steps + 1):
            x = torch.randn(16, 8, generator=torch.Generator().manual_seed(2 * step + rank))
            if step >= 4 and (what["where"] == "everywhere" or rank == 1):
                x = x * 100  # brought back by the norm of the first block, squared before
            if step == 9 and what["breaks"]:
                for m in model:
                    m.__dict__.pop("forward", None)  # the loop takes the remedy away
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(ddp(x).float(), (x[:, 0] > 0).long())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            wide = [n for n, m in model.named_modules() if "forward" in vars(m)]
            history.append([digest(), wide, all(bool(p.isfinite().all()) for p in model.parameters()), float(loss)])
finally:
    with open(f"{out}/history{rank}.json", "w") as file:
        json.dump(history, file)
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["everywhere", "rank 1"])
def test_two_ranks_put_the_same_module_in_float32(where, tmp_path):
    codes, said, (first, second) = two_ranks(tmp_path, {"where": where, "breaks": False}, source=OVERFLOWS)
    assert codes == [0, 0], said
    assert [entry[:3] for entry in first] == [entry[:3] for entry in second]
    assert [entry[1] for entry in first] == [[]] * 3 + [["0"]] * 27
    assert [first[n][0] == first[n - 1][0] for n in range(1, 30)] == [n == 3 for n in range(1, 30)], "one step is lost"
    assert sum("healed (fp16-activation-overflow, proved)" in err for err in said) == 1, "one rank speaks"
    assert sum("is kept: 16 finite steps" in err for err in said) == 1
    recording = Recording.load(tmp_path / "run")
    assert [event["state"] for event in recording.events("remedy")] == ["applied", "kept"]
    assert not recording.events("broken")


@pytest.mark.slow
def test_two_ranks_undo_together(tmp_path):
    codes, said, (first, second) = two_ranks(tmp_path, {"where": "rank 1", "breaks": True}, source=OVERFLOWS)
    assert codes == [3, 3], said
    assert [entry[:3] for entry in first] == [entry[:3] for entry in second]
    assert sum("is undone: the same cause is proved again" in err for err in said) == 1, said
    assert not Recording.load(tmp_path / "run").events("broken")
