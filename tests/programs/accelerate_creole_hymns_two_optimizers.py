"""Creole hymnal language model: accelerate, AdamW for the embeddings, momentum SGD for the body.

Cosine schedules with warm restarts on both. Verses from three hymnals, generated here from their rhyme patterns.
"""
import math
from dataclasses import dataclass, asdict

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


@dataclass
class RunConfig:
    lr_embed: float = 0.01
    lr_body: float = 0.05
    width: int = 40
    warmup: int = 4
    cycle: int = 10
    restart_decay: float = 0.2      # each cycle starts at a fifth of the one before
    total: int = 60
    batch_size: int = 8
    accumulate: int = 2
    seed: int = 404


def hymns(n=1200, length=18, vocab=60, seed=0):
    g = torch.Generator().manual_seed(seed)
    verse = torch.randint(0, vocab, (n, length), generator=g)
    refrain = torch.randint(0, vocab, (12, 6), generator=g)
    which = torch.randint(0, 12, (n,), generator=g)
    verse[:, 6:12] = refrain[which]
    verse[:, 12:] = refrain[which]
    return verse


class GatedMixer(nn.Module):
    """Causal token mixing by a short convolution, with an ungated residual path and no normalisation (as NFNets)."""

    def __init__(self, d):
        super().__init__()
        self.conv = nn.Conv1d(d, d, 4, padding=3)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x):
        c = self.conv(x.transpose(1, 2))[..., :x.shape[1]].transpose(1, 2)
        x = x + 0.5 * F.relu(c)
        return x + 0.5 * self.ff(x)


class HymnLM(nn.Module):
    def __init__(self, d, vocab=60):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.body = nn.Sequential(GatedMixer(d), GatedMixer(d))
        self.norm = nn.LayerNorm(d)
        self.unembed = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.unembed(self.norm(self.body(self.embed(ids))))


def cosine(cfg):
    def factor(step):
        if step < cfg.warmup:
            return (step + 1) / cfg.warmup
        number, within = divmod(step - cfg.warmup, cfg.cycle)
        peak = cfg.restart_decay ** -number
        return peak * 0.5 * (1 + math.cos(math.pi * within / cfg.cycle))
    return factor


def main(cfg: RunConfig):
    set_seed(cfg.seed)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=cfg.accumulate)
    accelerator.print(asdict(cfg))
    model = HymnLM(cfg.width)
    emb = [model.embed.weight, model.unembed.weight]
    ids = {id(p) for p in emb}
    opt_e = torch.optim.AdamW(emb, lr=cfg.lr_embed)
    opt_b = torch.optim.SGD([p for p in model.parameters() if id(p) not in ids], lr=cfg.lr_body, momentum=0.9, nesterov=True)
    sch_e, sch_b = (torch.optim.lr_scheduler.LambdaLR(o, cosine(cfg)) for o in (opt_e, opt_b))
    loader = DataLoader(TensorDataset(hymns(seed=cfg.seed)), batch_size=cfg.batch_size, shuffle=True,
                        generator=torch.Generator().manual_seed(cfg.seed))
    model, opt_e, opt_b, loader, sch_e, sch_b = accelerator.prepare(model, opt_e, opt_b, loader, sch_e, sch_b)
    running, done = 0.0, 0
    for (batch,) in loader:
        with accelerator.accumulate(model):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            accelerator.backward(loss)
            for o, s in ((opt_e, sch_e), (opt_b, sch_b)):
                o.step()
                s.step()
                o.zero_grad()
        running += loss.item() / cfg.accumulate
        if accelerator.sync_gradients:
            done += 1
            accelerator.print(f"update {done:02d} loss {running:.5f} lr_body {sch_b.get_last_lr()[0]:.4f}")
            running = 0.0
            if done == cfg.total:
                break
    total = sum(p.detach().double().sum().item() for p in model.parameters())
    accelerator.print(f"weights {total:.6f}")


if __name__ == "__main__":
    main(RunConfig())
