"""Selective state-space model (Mamba-like, S6) for sperm whale codas, pure PyTorch.

The scan is the "cumsum in exponent space" version: fast on CPU, no sequential loop over time. Context grows by stages.
"""
import argparse
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class MambaArgs:
    n_layers: int = 2
    d_model: int = 24
    d_state: int = 4
    expand: int = 2
    d_conv: int = 3
    vocab: int = 32


class SelectiveScan(nn.Module):
    def __init__(self, a: MambaArgs):
        super().__init__()
        self.di, self.n = a.expand * a.d_model, a.d_state
        self.in_proj = nn.Linear(a.d_model, 2 * self.di, bias=False)
        self.conv1d = nn.Conv1d(self.di, self.di, a.d_conv, groups=self.di, padding=a.d_conv - 1)
        self.x_proj = nn.Linear(self.di, 1 + 2 * self.n, bias=False)
        self.dt_bias = nn.Parameter(torch.full((self.di,), -1.0))
        self.dt_scale = nn.Parameter(torch.ones(self.di))
        self.A_log = nn.Parameter(torch.log(torch.arange(1, self.n + 1).float()).repeat(self.di, 1))
        self.D = nn.Parameter(torch.ones(self.di))
        self.out_proj = nn.Linear(self.di, a.d_model, bias=False)

    def forward(self, x):
        T = x.shape[1]
        u, res = self.in_proj(x).chunk(2, -1)
        u = F.silu(self.conv1d(u.transpose(1, 2))[..., :T].transpose(1, 2))
        dt, Bm, Cm = self.x_proj(u).split([1, self.n, self.n], -1)
        dt = F.softplus(dt * self.dt_scale + self.dt_bias)                     # (B, T, di)
        A = -self.A_log.exp()
        log_decay = torch.cumsum(dt[..., None] * A, dim=1)                     # (B, T, di, n)
        dBu = (dt * u)[..., None] * Bm[:, :, None, :]
        # h_t = sum_s exp(L_t - L_s) dBu_s
        growth = torch.exp(-log_decay)
        h = torch.exp(log_decay) * torch.cumsum(growth * dBu, dim=1)
        y = (h * Cm[:, :, None, :]).sum(-1) + u * self.D
        return self.out_proj(y * F.silu(res))


class RMSNorm(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class CodaMamba(nn.Module):
    def __init__(self, a: MambaArgs):
        super().__init__()
        self.embedding = nn.Embedding(a.vocab, a.d_model)
        self.norms = nn.ModuleList(RMSNorm(a.d_model) for _ in range(a.n_layers))
        self.mixers = nn.ModuleList(SelectiveScan(a) for _ in range(a.n_layers))
        self.norm_f = RMSNorm(a.d_model)
        nn.init.normal_(self.embedding.weight, std=0.1)

    def forward(self, ids):
        h = self.embedding(ids)
        for norm, mixer in zip(self.norms, self.mixers):
            h = h + mixer(norm(h))
        return F.linear(self.norm_f(h), self.embedding.weight)


def codas(batch, length, gen):
    """Inter-click intervals in 10 ms bins; clans repeat their own rhythm (1+1+3, 5R, ...) with jitter."""
    rhythm = torch.tensor([[4, 4, 12, 4, 4], [6, 6, 6, 6, 18], [3, 9, 3, 9, 20], [5, 5, 5, 15, 10]])
    clan = torch.randint(4, (batch,), generator=gen)
    t = torch.arange(length + 1) % 5
    jitter = torch.randint(0, 3, (batch, length + 1), generator=gen)
    return rhythm[clan][:, t] + jitter


STAGES = [(1, 16), (12, 24), (24, 96)]         # from step, context


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=40)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--seed", type=int, default=52)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    gen = torch.Generator().manual_seed(a.seed)
    model = CodaMamba(MambaArgs())
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(1, a.steps + 1):
        context = [c for s, c in STAGES if step >= s][-1]
        ids = codas(8, context, gen)
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        print(f"step {step:02d} ctx {context} nll {loss.item():.6f}")
    print("weights", f"{sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
