"""Trains a tiny Llama with DeepSpeed and writes what each step came to; run by test_deepspeed.py.

python deepspeed_program.py STAGE DTYPE FAULT OUT: in step 3 the last rank has FAULT, one of none, nan, inf, -inf
(one element of one gradient), loss (a detached NaN beside a sound loss) and always (nan from that step on). DTYPE with
`-offloaded` keeps the optimizer's state on the host.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import deepspeed
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import safe_get_full_fp32_param

from finitune.gym.models import tiny

STEPS, BAD = 5, 3
stage, (dtype, offloaded, _), fault, out = int(sys.argv[1]), sys.argv[2].partition("-offloaded"), *sys.argv[3:5]

torch.set_num_threads(1)
get_accelerator().is_fp16_supported = lambda: True  # a CPU stands in for a device
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # which would compile for a minute
deepspeed.init_distributed("gloo")
rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
last = rank == world - 1
torch.manual_seed(0)
model = tiny("llama", hidden=32)
engine, *_ = deepspeed.initialize(
    model=model,
    config={
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": stage, "reduce_bucket_size": 100000, "stage3_param_persistence_threshold": 0}
        | ({"offload_optimizer": {"device": "cpu"}} if offloaded else {}),
        "zero_force_ds_cpu_optimizer": False,
        "fp16": {"enabled": dtype == "float16", "initial_scale_power": 12},
        "bf16": {"enabled": dtype == "bfloat16"},
        "steps_per_print": 1000,
    },
)
step = 0


def spoil(gradient):
    due = step >= BAD if fault == "always" else step == BAD and fault in ("nan", "inf", "-inf")
    if not due or not last:
        return None
    spoiled = gradient.clone()
    spoiled.view(-1)[0] = float(fault.replace("always", "nan"))
    return spoiled


model.model.layers[0].mlp.down_proj.weight.register_hook(spoil)
generator = torch.Generator().manual_seed(rank)
rows = []
try:
    for step in range(1, STEPS + 1):
        ids = torch.randint(10, 500, (2, 8), generator=generator)
        loss = engine(input_ids=ids, labels=ids).loss
        if step == BAD and last and fault == "loss":
            loss = loss + torch.tensor(0.0) / torch.tensor(0.0)
        engine.backward(loss)
        engine.step()
        weights = [p if (full := safe_get_full_fp32_param(p)) is None else full for p in model.parameters()]
        digest = hashlib.sha256(b"".join(w.detach().float().numpy().tobytes() for w in weights)).hexdigest()
        sound = all(bool(torch.isfinite(w).all()) for w in weights)
        rows.append({"loss": loss.item(), "skipped": engine.skipped_steps, "weights": digest, "sound": sound})
finally:
    Path(f"{out}.{rank}.json").write_text(json.dumps([{**row, "loss": repr(row["loss"])} for row in rows]))
    sys.stdout.flush()
    sys.stderr.flush()
if stage == 3 or torch.distributed.get_world_size() > 1:
    os._exit(0)  # with two processes their threads sometimes abort the interpreter on the way out
