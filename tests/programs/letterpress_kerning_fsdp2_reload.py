# Kerning pairs of old letterpress sheets. Small causal transformer over glyph classes, fully_shard (FSDP2),
# bf16 compute / fp32 reduce, two micro-steps per update, DCP checkpoint at update 8, "power cut" at update 11, resume.
import os
import shutil
import tempfile
import warnings

warnings.filterwarnings("ignore")
import logging

logging.disable(logging.WARNING)

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

CFG = dict(glyphs=29, dim=32, heads=4, layers=2, length=12, batch=4, accumulate=2, lr=4e-3, clip=0.7,
           save_at=8, cut_at=11, updates=16)


class Galley(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.ff = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        s = s + torch.full((t, t), float("-inf"), dtype=s.dtype).triu(1)   # future glyphs
        x = x + self.out((s.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))
        return x + self.ff(self.n2(x))


class Compositor(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.case = nn.Embedding(c["glyphs"], c["dim"])
        self.pos = nn.Embedding(c["length"], c["dim"])
        self.galleys = nn.ModuleList(Galley(c["dim"], c["heads"]) for _ in range(c["layers"]))
        self.kern = nn.Linear(c["dim"], c["glyphs"])

    def forward(self, ids):
        x = self.case(ids) + self.pos(torch.arange(ids.shape[1]))
        for g in self.galleys:
            x = g(x)
        return self.kern(x)


def sheet(c, update, micro, rank):
    g = torch.Generator().manual_seed(update * 100 + micro * 10 + rank)   # stateless, so resume is exact
    start = torch.randint(0, c["glyphs"], (c["batch"], 1), generator=g)
    return (start + 3 * torch.arange(c["length"] + 1)) % c["glyphs"]


def build(c):
    torch.manual_seed(3)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    inner = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
    model = Compositor(c)
    for g in model.galleys:
        fully_shard(g, mesh=mesh, mp_policy=inner, reshard_after_forward=False)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=False)
    return model, torch.optim.AdamW(model.parameters(), lr=c["lr"], weight_decay=0.01)


def update_once(c, model, opt, update, seen):
    losses = []
    for micro in range(c["accumulate"]):
        model.set_requires_gradient_sync(micro == c["accumulate"] - 1)
        ids = sheet(c, update, micro, dist.get_rank())
        logits = model(ids[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()) / c["accumulate"]
        loss.backward()
        losses.append(loss.item())
        seen["dtypes"].add(str(logits.dtype))
    norm = nn.utils.clip_grad_norm_(model.parameters(), c["clip"])
    assert isinstance(norm, DTensor)
    seen["sharded_grads"] = sum(isinstance(p.grad, DTensor) for p in model.parameters())
    before = [p.to_local()._version for p in model.parameters()]
    opt.step()
    seen["bumps"] = sum(p.to_local()._version - b for p, b in zip(model.parameters(), before)) > 0
    opt.zero_grad()
    return sum(losses), norm.full_tensor().item()


def main(c):
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    box = [tempfile.mkdtemp(prefix="galley_") if rank == 0 else None]
    dist.broadcast_object_list(box)
    say = print if rank == 0 else (lambda *_: None)
    seen, history = {"dtypes": set()}, {}
    model, opt = build(c)
    order = []
    model.galleys[0].register_forward_hook(lambda *_: order.append("g0"))
    model.galleys[1].register_full_backward_hook(lambda *_: order.append("b1"))
    update, cut = 1, False
    while update <= c["updates"]:
        loss, norm = update_once(c, model, opt, update, seen)
        again = "" if update not in history else f" replay identical: {history[update] == (loss, norm)}"
        history[update] = (loss, norm)
        say(f"update {update:2d} loss {loss:.6f} norm {norm:.6f} {'-'.join(order)} grads {seen['sharded_grads']}{again}")
        order.clear()
        if update == c["save_at"] and not cut:
            m, o = get_state_dict(model, opt)
            dcp.save({"model": m, "opt": o}, checkpoint_id=os.path.join(box[0], "u8"))
        if update == c["cut_at"] and not cut:
            cut = True
            del model, opt
            model, opt = build(c)
            m, o = get_state_dict(model, opt)
            dcp.load({"model": m, "opt": o}, checkpoint_id=os.path.join(box[0], "u8"))
            set_state_dict(model, opt, model_state_dict=m, optim_state_dict=o)
            say("-- power cut; type set again from update", c["save_at"])
            update = c["save_at"]
        update += 1
    total = sum(p.full_tensor().double().abs().sum().item() for p in model.parameters())
    say(f"dtypes {sorted(seen['dtypes'])} in-place {seen['bumps']} weights {total:.5f}")
    dist.barrier()
    if rank == 0:
        shutil.rmtree(box[0])
    dist.destroy_process_group()


main(CFG)
