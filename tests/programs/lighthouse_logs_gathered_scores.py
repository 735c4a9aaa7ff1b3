"""Lighthouse keepers' logs: visibility class from the words of an entry. Accelerate, two processes.

Accumulation of 3, the last group of an epoch is short; scores by gather_for_metrics (the padding of the last batch
must be dropped); activation checkpoints around the encoder layers, so their forwards run twice.
"""
import gc
import os
import warnings
import weakref

warnings.filterwarnings("ignore")
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, GradientAccumulationPlugin, set_seed
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (CheckpointImpl, apply_activation_checkpointing,
                                                                        checkpoint_wrapper)
from torch.utils.data import DataLoader, Dataset

WORDS, CLASSES = 60, 4


class Entries(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, CLASSES, (n,), generator=g)
        self.x = torch.randint(0, WORDS, (n, 9), generator=g)
        self.x[:, 0] = self.y * 3 + 1                       # keepers start with "fog", "haze", ...
        self.len = torch.randint(3, 10, (n,), generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"x": self.x[i], "n": self.len[i], "y": self.y[i]}


class Watch(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.n, self.q, self.v = nn.LayerNorm(d), nn.Linear(d, d), nn.Linear(d, d)
        self.drop = nn.Dropout(0.1)                         # its mask must be the same in the recomputation

    def forward(self, h, bias):
        z = self.n(h)
        w = torch.softmax(self.q(z) @ z.transpose(1, 2) / z.shape[-1] ** 0.5 + bias, -1)
        return h + self.drop(torch.relu(w @ self.v(z)))


class Keeper(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.embed = nn.Embedding(WORDS, d)
        self.watches = nn.ModuleList([Watch(d), Watch(d)])
        self.head = nn.Linear(d, CLASSES)

    def forward(self, x, n):
        hole = torch.arange(x.shape[1]) >= n[:, None]
        bias = torch.zeros(x.shape).masked_fill(hole, float("-inf"))[:, None, :]
        h = self.embed(x)
        for w in self.watches:
            h = w(h, bias)
        return self.head(h.masked_fill(hole[..., None], 0).sum(1) / n[:, None])


def evaluate(acc, model, loader):
    model.eval()
    hits = seen = 0
    with torch.no_grad():
        for b in loader:
            p = model(b["x"], b["n"]).argmax(-1)
            p, y = acc.gather_for_metrics((p, b["y"]))
            hits, seen = hits + int((p == y).sum()), seen + len(y)
    model.train()
    return hits, seen


def main():
    set_seed(15)
    acc = Accelerator(cpu=True, gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=3, sync_with_dataloader=True),
                      kwargs_handlers=[DistributedDataParallelKwargs(static_graph=False, gradient_as_bucket_view=True)])
    model = Keeper()
    calls = {"layer": 0, "norm": 0, "grad": 0}
    model.watches[0].register_forward_hook(lambda *_: calls.update(layer=calls["layer"] + 1))
    model.watches[0].n.register_forward_hook(lambda *_: calls.update(norm=calls["norm"] + 1))
    apply_activation_checkpointing(model, checkpoint_wrapper_fn=lambda m: checkpoint_wrapper(m, CheckpointImpl.NO_REENTRANT),
                                   check_fn=lambda m: isinstance(m, Watch))
    opt = torch.optim.AdamW(model.parameters(), lr=8e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=40)
    train = DataLoader(Entries(83, 1), batch_size=6, shuffle=True)
    test = DataLoader(Entries(37, 2), batch_size=5)
    model, opt, train, test, sched = acc.prepare(model, opt, train, test, sched)
    acc.unwrap_model(model).head.weight.register_hook(lambda g: calls.update(grad=calls["grad"] + 1))
    stored = []
    updates = 0
    for epoch in range(1, 5):
        running = torch.zeros(())
        for b in train:
            with acc.accumulate(model):
                logits = model(b["x"], b["n"])
                loss = F.cross_entropy(logits, b["y"])
                stored.append(weakref.ref(logits))
                acc.backward(loss)
                running += loss.detach()
                if acc.sync_gradients:
                    norm = acc.clip_grad_norm_(model.parameters(), 1.0)
                opt.step()
                sched.step()
                opt.zero_grad()
            if acc.sync_gradients:
                updates += 1
                mean = acc.reduce(running, "mean").item()
                acc.print(f"update {updates:2d} loss {mean:.6f} norm {norm:.5f} lr {sched.get_last_lr()[0]:.3e} {calls}")
                running = torch.zeros(())
        del logits, loss
        gc.collect()
        hits, seen = evaluate(acc, model, test)
        acc.print(f"epoch {epoch} right {hits}/{seen} logits alive {sum(s() is not None for s in stored)}/{len(stored)}")
        acc.wait_for_everyone()
    names = [n for n in acc.get_state_dict(model)]
    acc.print(f"{len(names)} tensors, wrapped names {sum('_checkpoint' in n for n in names)}, "
              f"sum {sum(p.double().abs().sum() for p in model.parameters()):.6f}")
    acc.end_training()


if __name__ == "__main__":
    main()
