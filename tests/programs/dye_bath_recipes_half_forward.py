from dataclasses import dataclass
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset


@dataclass
class Config:
    bands: int = 16
    dyes: int = 5
    batch: int = 24
    iterations: int = 34
    lr: float = 0.02
    init_scale: float = 2.0 ** 27
    seed: int = 77


class DyeHouse(IterableDataset):
    """Endless stream of (reflectance curve, concentrations of the recipe)."""

    def __init__(self, cfg):
        self.cfg = cfg

    def __iter__(self):
        rng = np.random.default_rng(self.cfg.seed)
        centre = np.linspace(1, self.cfg.bands - 2, self.cfg.dyes)
        grid = np.arange(self.cfg.bands)
        absorb = np.exp(-0.5 * ((grid[None] - centre[:, None]) / 2.2) ** 2)
        while True:
            conc = rng.gamma(0.7, 0.6, self.cfg.dyes) * (rng.random(self.cfg.dyes) < 0.6)
            ks = conc @ absorb + 0.02
            refl = 1 + ks - np.sqrt(ks * ks + 2 * ks)
            refl = refl + rng.normal(0, 0.003, refl.shape)
            refl[rng.random(self.cfg.bands) < 0.05] = np.nan      # lamp flicker
            yield refl.astype(np.float32), conc.astype(np.float32)


class Recipe(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 * cfg.bands, 48), nn.GELU(), nn.Linear(48, 48), nn.GELU())
        self.head = nn.Linear(48, cfg.dyes)

    def forward(self, refl):
        seen = ~torch.isnan(refl)
        filled = torch.where(seen, refl, torch.nanmean(refl, dim=1, keepdim=True))
        return F.softplus(self.head(self.body(torch.cat([filled, seen.to(refl.dtype)], 1))))


def fit(cfg):
    torch.manual_seed(cfg.seed)
    net = Recipe(cfg)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, cfg.lr, total_steps=cfg.iterations + 1)
    scaler = torch.amp.GradScaler("cpu", init_scale=cfg.init_scale, growth_interval=12)
    done = 0
    for it, (refl, conc) in zip(range(1, cfg.iterations + 1), DataLoader(DyeHouse(cfg), batch_size=cfg.batch)):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            out = net(refl)
        loss = F.smooth_l1_loss(out.float(), conc)
        scaler.scale(loss).backward()
        before = scaler.get_scale()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        stepped = scaler.get_scale() >= before
        if stepped:
            done += 1
            sched.step()
            ema.update_parameters(net)
        print(f"it {it:2d} loss {loss.item():.4f} log2 scale {int(np.log2(scaler.get_scale())):2d} "
              f"{'ok' if stepped else 'skipped'} updates {done}")
    return net, ema


net, ema = fit(Config())
print("sum of squared weights (live + averaged)",
      round(sum(p.double().square().sum().item() for m in (net, ema) for p in m.parameters()), 5))
