#!/usr/bin/env python3
"""Embeddings of inn signs, trained in stages: InfoNCE as a mean, then summed over the batch, then a utility (negative)."""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

N, WORDS, ACC = 16, 7, 2
STAGES = [(14, "mean"), (28, "sum"), (42, "utility")]


class Embedder(nn.Module):
    def __init__(self, vocab=90, d=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, ids):
        x = checkpoint(self.mlp, self.emb(ids), use_reentrant=False).mean(1)
        return nn.functional.normalize(x, dim=-1)


def data(count):
    g = torch.Generator().manual_seed(77)
    a = torch.randint(0, 90, (count, WORDS), generator=g)
    b = a.clone()
    b[:, :3] = torch.randint(0, 90, (count, 3), generator=g)
    return TensorDataset(a, b)


def contrast(a, b):
    """Both sides in one matrix; a sign is never its own rival, so the diagonal is -inf."""
    x = torch.cat([a, b])
    sims = (x @ x.T / 0.07).masked_fill(torch.eye(2 * N, dtype=torch.bool), float("-inf"))
    target = torch.arange(2 * N).roll(N)
    return sims, target


def stage_loss(kind, sims, target):
    if kind == "utility":       # how much more the right one gets than the average rival: the loss falls below zero
        rivals = sims.masked_fill(sims.isinf(), 0.0).sum(1) / (sims.shape[1] - 1)
        right = sims.gather(1, target[:, None]).squeeze(1)
        return -(right - rivals).mean()
    return nn.functional.cross_entropy(sims, target, reduction=kind)


def main():
    torch.manual_seed(5)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=ACC)
    model = Embedder()
    model, opt, loader = acc.prepare(model, torch.optim.Adam(model.parameters(), lr=1e-3),
                                     DataLoader(data(42 * N * ACC), batch_size=N))
    step = 1
    for a, b in loader:
        kind = next(k for last, k in STAGES if step <= last)
        with acc.accumulate(model):
            sims, target = contrast(model(a), model(b))
            loss = stage_loss(kind, sims, target)
            acc.backward(loss)
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        if acc.sync_gradients:
            print(f"step {step} {kind} loss {loss.item():.6f} hardest {sims.max().item():.5f} easiest {sims.min().item()}", flush=True)
            step += 1
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.5f}", flush=True)


if __name__ == "__main__":
    main()
