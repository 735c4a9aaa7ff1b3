"""Sparse experts for harbour tide curves, float16 autocast on the CPU with a loss scaler."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    width: int = 24
    experts: int = 5
    keep: int = 2
    steps: int = 30
    batch: int = 16
    lr: float = 3e-3
    scale: float = 2.0**22


class SparseGate(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.keep = cfg.keep
        self.score = nn.Linear(cfg.width, cfg.experts, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        s = self.score(x).float()
        chosen = torch.zeros_like(s, dtype=torch.bool).scatter(-1, s.topk(self.keep, -1).indices, True)
        return torch.where(chosen, s, float("-inf")).softmax(-1)


class TideNet(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.lift = nn.Linear(12, cfg.width)
        self.gate = SparseGate(cfg)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(cfg.width, 2 * cfg.width), nn.SiLU(), nn.Linear(2 * cfg.width, cfg.width))
            for _ in range(cfg.experts)
        )
        self.out = nn.Linear(cfg.width, 6)

    def forward(self, x: Tensor):
        h = torch.tanh(self.lift(x))
        g = self.gate(h)
        mixed = torch.stack([e(h) for e in self.experts], 1)
        return self.out(h + (g.unsqueeze(-1) * mixed).sum(1)), g


def tides(gen: torch.Generator, n: int):
    t = torch.arange(18.0)
    phase = 6.28 * torch.rand(n, 1, generator=gen)
    ratio = torch.rand(n, 1, generator=gen)
    y = torch.cos(0.51 * t + phase) + ratio * torch.cos(0.26 * t + 2 * phase)
    return y[:, :12], y[:, 12:]


def main(cfg: Config = Config()):
    torch.manual_seed(11)
    gen = torch.Generator().manual_seed(12)
    net = TideNet(cfg)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=cfg.scale)
    for step in range(1, cfg.steps + 1):
        past, future = tides(gen, cfg.batch)
        with torch.autocast("cpu", dtype=torch.float16):
            guess, gates = net(past)
            match = nn.functional.cosine_similarity(guess.float(), future, dim=-1).mean()
            load = gates.mean(0)
            loss = -match + 0.02 * cfg.experts * (load * load).sum()
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        print(f"step {step:02d} loss {loss.item()!r} scale {scaler.get_scale():g}")
    print(sum(p.double().sum() for p in net.parameters()).item())


if __name__ == "__main__":
    main()
