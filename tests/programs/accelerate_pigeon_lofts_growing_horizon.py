"""Homing times of racing pigeons: a mixture density of the next stage, trained with accelerate.

The horizon grows during training (1 stage, then 2, then 4, ...), and the loss is summed over the stages, so it is higher
after each growth.  Densities of short stages are far above one, hence negative losses.
"""
import math
import sys

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, Dataset

ACCUMULATE, STEPS, BATCH, STAGES = 4, 36, 16, 8


class Races(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.loft = torch.randn(n, 5, generator=g)
        wind = torch.randn(n, STAGES, generator=g)
        scale = torch.tensor([2e-4, 1e-2, 3e-1, 1.0, 3.0, 10.0, 30.0, 90.0])
        self.times = scale * torch.exp(0.4 * wind + 0.3 * self.loft[:, :1])
        self.unit = scale
        # birds that never came home: no time from some stage on
        lost = torch.randint(1, 3 * STAGES, (n,), generator=g)
        self.times[torch.arange(STAGES)[None] >= lost[:, None]] = float("inf")
        # the first club of the archive handed in no clock readings at all
        self.times[:BATCH] = float("inf")

    def __len__(self):
        return len(self.loft)

    def __getitem__(self, i):
        return {"loft": self.loft[i], "times": self.times[i]}


class MixtureHead(nn.Module):
    def __init__(self, width, parts):
        super().__init__()
        self.parts = parts
        self.out = nn.Linear(width, STAGES * parts * 3)

    def forward(self, h):
        w, m, s = self.out(h).view(len(h), STAGES, self.parts, 3).unbind(-1)
        return w.log_softmax(-1), m, 0.3 * torch.tanh(s) - 0.5


class Homing(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU())
        self.head = MixtureHead(32, 3)
        # only used for reports of the breeders' club, not trained
        self.breed = nn.Linear(32, 2)
        self.breed.requires_grad_(False)

    def forward(self, loft):
        return self.head(self.body(loft))


def stage_nll(outputs, times, unit):
    logw, mean, logs = outputs
    home = times.isfinite()
    z = torch.where(home, times, unit).log() - unit.log()      # a bird that is lost stands at the usual time, then is masked
    zz = (z.unsqueeze(-1) - mean) / logs.exp()
    logp = torch.logsumexp(logw - 0.5 * zz ** 2 - logs - 0.5 * math.log(2 * math.pi), -1)
    logp = logp - torch.where(home, times, unit).log()         # density of the time, not of its logarithm
    return torch.where(home, -logp, 0.0), home


def main():
    set_seed(64)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    data = Races(BATCH * ACCUMULATE * STEPS, 9)
    loader = DataLoader(data, batch_size=BATCH, shuffle=False)
    model = Homing()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    step, parts = 0, []
    for batch in loader:
        with accelerator.accumulate(model):
            horizon = min(STAGES, 2 ** (step // 9))
            nll, home = stage_nll(model(batch["loft"]), batch["times"], data.unit)
            nll, home = nll[:, :horizon], home[:, :horizon]
            loss = nll.sum() / BATCH
            accelerator.backward(loss)
            # for the eye only: the mean over those who came home, of which there may be none
            parts.append((loss.item(), (nll.sum() / home.sum()).item(), batch["times"][:, :horizon].mean().item()))
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 0.5)
                step += 1
                a, b, c = (sum(column) / len(parts) for column in zip(*parts))
                print(f"step {step:2d} horizon {horizon} loss {a:.6f} per bird {b:.5f} mean time {c:.3f} "
                      f"norm {norm.item():.5f}", flush=True)
                parts.clear()
            optimizer.step()
            optimizer.zero_grad()
    print(sum(p.detach().abs().sum().item() for p in model.parameters()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
