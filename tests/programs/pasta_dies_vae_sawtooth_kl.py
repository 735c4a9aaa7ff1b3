"""VAE of pasta cross-sections: sawtooth KL weight, float16 autocast, a scaler that starts far too high."""
import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = dict(steps=50, batch=32, side=12, latent=6, period=12, lr=2e-3, seed=41)


class Tracker:
    """Running means by name; a name that has no entry yet reads NaN."""

    def __init__(self, *names):
        self.values = {n: [] for n in names}

    def add(self, name, value):
        self.values[name].append(value)

    def mean(self, name):
        v = self.values[name]
        return sum(v) / len(v) if v else float("nan")


class PastaVae(nn.Module):
    def __init__(self, pixels, latent):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 2 * latent))
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, pixels))
        self.own = torch.Generator().manual_seed(99)

    def forward(self, x):
        mu, logvar = self.encoder(x).float().chunk(2, -1)
        z = mu + (0.5 * logvar).exp() * torch.randn(mu.shape, generator=self.own)
        return self.decoder(z), mu, logvar


def dies(cfg):
    g = torch.Generator().manual_seed(cfg["seed"])
    y, x = torch.meshgrid(*[torch.linspace(-1, 1, cfg["side"])] * 2, indexing="ij")
    r = (x ** 2 + y ** 2).sqrt()
    for _ in range(cfg["steps"]):
        outer = 0.6 + 0.4 * torch.rand(cfg["batch"], 1, 1, generator=g)
        inner = 0.5 * torch.rand(cfg["batch"], 1, 1, generator=g)
        yield ((r < outer) & (r > inner)).float().flatten(1)


def sawtooth(step, period):
    return min(1.0, 2.0 * (step % period) / period)


@contextmanager
def half():
    with torch.autocast("cpu", dtype=torch.float16):
        yield


class Trainer:
    def __init__(self, model, optimizer, scaler, cfg):
        self.model, self.optimizer, self.scaler, self.cfg = model, optimizer, scaler, cfg
        self.tracker = Tracker("kl_at_full_weight", "skipped")

    def losses(self, x):
        with half():
            logits, mu, logvar = self.model(x)
        recon = F.binary_cross_entropy_with_logits(logits.float(), x, reduction="none").sum(-1).mean()
        kl = -0.5 * (1 + logvar - mu ** 2 - logvar.exp()).sum(-1).mean()
        return recon, kl

    def fit(self, batches):
        for step, x in enumerate(batches):
            beta = sawtooth(step, self.cfg["period"])
            self.optimizer.zero_grad()
            recon, kl = self.losses(x)
            loss = recon + 10 * beta * kl
            self.scaler.scale(loss).backward()
            before = self.scaler.get_scale()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.tracker.add("skipped", float(self.scaler.get_scale() < before))
            if beta == 1.0:
                self.tracker.add("kl_at_full_weight", kl.item())
            print(f"{step + 1:3d} beta {beta:.3f} loss {loss.item():.6f} scale {before:.0f} "
                  f"full-kl {self.tracker.mean('kl_at_full_weight'):.6f}", flush=True)


def main(cfg=CONFIG):
    torch.manual_seed(cfg["seed"])
    model = PastaVae(cfg["side"] ** 2, cfg["latent"])
    optimizer = torch.optim.Adam(model.parameters(), lr=cfg["lr"])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 24, growth_interval=1000)
    trainer = Trainer(model, optimizer, scaler, cfg)
    trainer.fit(dies(cfg))
    print(f"skipped {sum(trainer.tracker.values['skipped']):.0f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
