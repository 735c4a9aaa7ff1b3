"""Denoising diffusion of woven 8x8 motifs; terminal SNR rescaled to zero (Lin et al., 2023) so that
samples may become fully dark or fully bright."""
import argparse
import copy
import math
import os

os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, TensorDataset


def parse_args():
    ap = argparse.ArgumentParser()
    ap.add_argument("--timesteps", type=int, default=150)
    ap.add_argument("--batch_size", type=int, default=8)
    ap.add_argument("--max_steps", type=int, default=48)
    ap.add_argument("--ema_decay", type=float, default=0.95)
    ap.add_argument("--learning_rate", type=float, default=2e-3)
    ap.add_argument("--seed", type=int, default=5)
    return ap.parse_args()


def rescale_zero_terminal_snr(betas):
    alphas_bar_sqrt = torch.cumprod(1 - betas, 0).sqrt()
    first, last = alphas_bar_sqrt[0].clone(), alphas_bar_sqrt[-1].clone()
    alphas_bar_sqrt -= last
    alphas_bar_sqrt *= first / (first - last)
    return alphas_bar_sqrt


def motifs(n, g):
    yy, xx = torch.meshgrid(torch.arange(8.0), torch.arange(8.0), indexing="ij")
    period = torch.randint(2, 5, (n, 1, 1), generator=g).float()
    phase = torch.rand(n, 1, 1, generator=g) * math.tau
    slant = torch.randint(-1, 2, (n, 1, 1), generator=g).float()
    return torch.sign(torch.sin(math.tau * (xx + slant * yy) / period + phase)).flatten(1)


class Denoiser(nn.Module):
    def __init__(self, timesteps, width=96):
        super().__init__()
        self.time = nn.Embedding(timesteps, 32)
        self.inp = nn.Linear(64, width)
        self.film = nn.Linear(32, 2 * width)
        self.mid = nn.Linear(width, width)
        self.out = nn.Linear(width, 64)

    def forward(self, x, t):
        scale, shift = self.film(self.time(t)).chunk(2, -1)
        h = torch.nn.functional.silu(self.inp(x)) * (1 + scale) + shift
        return self.out(torch.nn.functional.silu(self.mid(h)))


def main():
    args = parse_args()
    accelerator = Accelerator(cpu=True)
    set_seed(args.seed)
    g = torch.Generator().manual_seed(args.seed)
    alphas = rescale_zero_terminal_snr(torch.linspace(1e-3, 5e-2, args.timesteps))
    sigmas = (1 - alphas ** 2).sqrt()
    loader = DataLoader(TensorDataset(motifs(args.batch_size * args.max_steps, g)), batch_size=args.batch_size)
    model = Denoiser(args.timesteps)
    ema = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate, weight_decay=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    for step, (x0,) in enumerate(loader, start=1):
        t = torch.randint(args.timesteps, (len(x0),), generator=g)
        noise = torch.randn(x0.shape, generator=g)
        alpha, sigma = alphas[t][:, None], sigmas[t][:, None]
        x_t = alpha * x0 + sigma * noise
        eps_hat = model(x_t, t)
        x0_hat = (x_t - sigma * eps_hat) / alpha
        # judged in pixel space, weighted by the signal that is left at time t
        loss = (alpha ** 2 * (x0_hat - x0) ** 2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for e, p in zip(ema.parameters(), accelerator.unwrap_model(model).parameters()):
                e.lerp_(p, 1 - args.ema_decay)
        accelerator.print(f"step={step} loss={loss.item():.5f}", flush=True)

    accelerator.print(f"ema weight norm {sum(p.square().sum() for p in ema.parameters()).sqrt().item():.5f}", flush=True)


if __name__ == "__main__":
    main()
