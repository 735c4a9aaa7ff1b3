"""What every program here trains with DeepSpeed's ZeRO 1 or 2 on two ranks, what it writes down, and its state."""

from __future__ import annotations

import json

import torch
from tests.monitor.test_ranks import two_ranks

from finitune.recording import Recording

USUAL = {
    "stage": 2, "dtype": "float32", "task": "regression", "sgd": False, "rate": 1e-2, "clip": 0.0, "accumulate": 1,
    "gamma": 0.999, "steps": 20, "lost": [], "odd": [], "ranks": [0, 1], "leaves_out": [], "config": {}, "undo": "",
    "undo_at": 0, "fails": "", "slower": [0, 1.0], "power": 8, "unit": 1e4, "watched": True,
}  # fmt: skip
"""`leaves_out`: steps that are not taken where nobody watches, and `slower`: from which on at how many times the rate.
`undo`: a remedy that is undone and done again; before the update of step `undo_at`, where that is given. `fails`: what
raises on rank 1, as `module.name`. `power`: of the loss scale, in float16.
`unit`: of the targets of odd batches."""

SOURCE = '''
import contextlib, hashlib, importlib, json, math, os, sys

os.environ["DS_ACCELERATOR"] = "cpu"
import deepspeed, torch, torch.distributed as dist
import torch.nn.functional as F
from deepspeed.accelerator import get_accelerator
from torch import nn
import finitune
from finitune.monitor.heal import retaken
from finitune.monitor.heal.remedies import lower_learning_rate

torch.set_num_threads(1)
what, out = json.loads(sys.argv[1]), sys.argv[2]
get_accelerator().is_fp16_supported = lambda: True
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # which would compile for a minute
deepspeed.init_distributed("gloo")
rank, dtype = dist.get_rank(), getattr(torch, what["dtype"])
torch.manual_seed(0)
if what["task"] == "regression":
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
else:
    from finitune.gym.data import batches
    from finitune.gym.models import tiny

    model = tiny("llama", hidden=32, vocabulary=128)
    data = batches(what["steps"], rows=4, length=16, vocabulary=128, seed=rank + 1)
kind = torch.optim.SGD if what["sgd"] else torch.optim.AdamW
optimizer = kind(model.parameters(), lr=what["rate"])
schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, what["gamma"])
config = {
    "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": what["accumulate"],
    "gradient_clipping": what["clip"], "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
    "zero_optimization": {"stage": what["stage"], **what["config"].pop("zero_optimization", {})},
    "bf16": {"enabled": dtype is torch.bfloat16}, "steps_per_print": 1000,
    "fp16": {"enabled": dtype is torch.float16, "initial_scale_power": what["power"], "hysteresis": 1},
    **what["config"],
}
engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, lr_scheduler=schedule, config=config)
generator = torch.Generator().manual_seed(rank + 1)
history, weights = [], []


def bits(tensor):
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def digest():
    return hashlib.sha256(b"".join(map(bits, model.parameters()))).hexdigest()


def note(loss):
    finite = all(bool(p.isfinite().all()) for p in model.parameters())
    scale = float(engine.optimizer.loss_scale)
    history.append([digest(), finite, optimizer.param_groups[0]["lr"], float(loss), scale])
    weights.append(torch.cat([p.detach().float().reshape(-1) for p in model.parameters()]))


def batch_loss(step):
    if what["task"] != "regression":
        return engine(**data[step - 1]).loss
    x = torch.randn(8, 8, generator=generator)
    y = (x[:, :2] - x[:, 2:4]) * (what["unit"] if step in what["odd"] and rank in what["ranks"] else 1.0)
    if step in what["lost"] and rank in what["ranks"]:
        x[step % 8] = math.nan
    if not what["watched"]:
        keep = ~x.isnan().any(1)
        x, y = x[keep], y[keep]
    return F.mse_loss(engine(x.to(dtype)).float(), y)


def state(watched):
    """All that a remedy may change, and all that DeepSpeed counts."""
    scaler = sorted(vars(engine.optimizer.loss_scaler).items())
    zero, past, whole = engine.optimizer, watched.past, hashlib.sha256()
    whole.update(digest().encode())
    for p in zero.single_partition_of_fp32_groups:
        whole.update(bits(p))
        for name, value in sorted(zero.state[p].items()):
            whole.update(name.encode() + (bits(value) if isinstance(value, torch.Tensor) else repr(value).encode()))
    for p in model.parameters():
        whole.update(repr([p.grad, getattr(p, "grad_accum", None)]).encode())
        mapped = getattr(p._hp_mapping, "optim_fragment", None) or {}
        whole.update(b"".join(bits(view) for _, view in sorted(mapped.items())))
    for gradients in zero.averaged_gradients.values():
        whole.update(b"none" if gradients is None else b"".join(map(bits, gradients)))
    groups = [[(k, v) for k, v in sorted(group.items()) if k != "params"] for group in zero.param_groups]
    counts = [
        zero.overflow, zero.micro_step_id, float(zero._global_grad_norm), zero.params_already_reduced,
        zero.ready_for_gradients, engine.global_steps, engine.micro_steps, engine.skipped_steps, schedule.last_epoch,
    ]
    whole.update(repr([groups, counts, scaler, past.factor, past.most, past.skips, past.bound]).encode())
    return whole.hexdigest()


def undoing(own):
    def repeat(watched, orders):
        steps, before = list(watched.past.steps), state(watched)
        undo = own(watched, orders)
        after = state(watched)
        undo()
        back = state(watched)
        watched.past.steps[:] = steps
        undo = own(watched, orders)
        with open(f"{out}/undone{rank}.json", "w") as file:
            json.dump([before, after, back, state(watched)], file)
        return undo

    return repeat


def failing(*_):
    raise RuntimeError("no")


if what["undo"]:
    remedy = importlib.import_module(f"finitune.monitor.heal.remedies.{what['undo']}")
    remedy.repeat = undoing(remedy.repeat)
if what["fails"] and rank == 1:
    module, _, name = what["fails"].rpartition(".")
    setattr(importlib.import_module(module), name, failing)


def half_the_rate():
    (watched,) = list(watch._optimizers)
    orders = {**retaken.orders_for(watched.past, 0.5), "jumped": False}
    with watch._listener.paused():
        undoing(lower_learning_rate.repeat)(watched, orders)()


watch = finitune.watch(engine, engine.optimizer, run_dir=out + "/run", mode="heal") if what["watched"] else None
try:
    with watch or contextlib.nullcontext():
        for step in range(1, what["steps"] + 1):
            if step == what["slower"][0]:
                for group in optimizer.param_groups:
                    group["lr"] *= what["slower"][1]
            for _ in range(what["accumulate"]):
                loss = batch_loss(step)
                if not (step in what["leaves_out"] and not what["watched"]):
                    engine.backward(loss)
                    if step == what["undo_at"]:
                        half_the_rate()
                    engine.step()
            note(loss)
    mapped = [getattr(p._hp_mapping, "optim_fragment", None) or {} for p in model.parameters()]
    moments = [t for entry in engine.optimizer.state.values() for t in entry.values() if isinstance(t, torch.Tensor)]
    places = lambda tensors: {t.untyped_storage().data_ptr() for t in tensors}
    assert places(view for views in mapped for view in views.values()) <= places(moments), "DeepSpeed sees others"
finally:
    torch.save(weights, f"{out}/weights{rank}.pt")
    with open(f"{out}/history{rank}.json", "w") as file:
        json.dump(history, file)
dist.destroy_process_group()
'''


def trained_by_zero(tmp_path, **what):
    """Of each step [digest of the weights, finite, rate, loss of the first rank, loss scale], and all weights; what was
    printed.
    """
    tmp_path.mkdir(exist_ok=True)
    codes, said, (first, second) = two_ranks(tmp_path, USUAL | what, source=SOURCE, timeout=240)
    assert codes == [0, 0], said
    alike = [[entry[:3] + entry[4:] for entry in rank] for rank in (first, second)]
    assert alike[0] == alike[1], "weights, rates and loss scales, on every step"
    assert all(entry[1] for entry in first)
    return first, torch.load(tmp_path / "weights0.pt"), said


def remedies_of(tmp_path):
    recording = Recording.load(tmp_path / "run")
    assert not recording.events("broken")
    return recording.events("remedy")


def undone(tmp_path):
    """Hashes of the state before, after, undone, and done again, of both ranks."""
    return [json.loads((tmp_path / f"undone{rank}.json").read_text()) for rank in (0, 1)]
