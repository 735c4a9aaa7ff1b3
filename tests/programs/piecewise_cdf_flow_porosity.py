from dataclasses import dataclass
import torch as th
import torch.nn as nn
from torch.distributions import Uniform, Beta


@dataclass
class Config:
    bins: int = 16
    width: int = 32
    lr: float = 4e-3
    steps: int = 80
    batch: int = 128
    seed: int = 77


class PiecewiseLinearCoupling(nn.Module):
    """One half of the unit square is warped by the cumulative sum of a histogram (Mueller et al. 2019)."""

    def __init__(self, cfg: Config, swap: bool):
        super().__init__()
        self.bins, self.swap = cfg.bins, swap
        self.histogram = nn.Sequential(nn.Linear(1, cfg.width), nn.SiLU(), nn.Linear(cfg.width, cfg.bins))

    def forward(self, xy: th.Tensor):
        a, b = xy.unbind(-1)
        if self.swap:
            a, b = b, a
        mass = self.histogram(a[:, None]).softmax(-1)
        edge = nn.functional.pad(mass.cumsum(-1), (1, 0))
        where = (b * self.bins).floor().long().clamp(0, self.bins - 1)[:, None]
        density = mass.gather(1, where).squeeze(1) * self.bins
        left = edge.gather(1, where).squeeze(1)
        warped = left + (b - where.squeeze(1) / self.bins) * density
        out = (a, warped) if not self.swap else (warped, a)
        return th.stack(out, -1), density.log()


class Flow(nn.Module):
    def __init__(self, cfg: Config):
        super().__init__()
        self.layers = nn.ModuleList(PiecewiseLinearCoupling(cfg, bool(k % 2)) for k in range(4))

    def log_prob(self, x):
        total = x.new_zeros(len(x))
        for layer in self.layers:
            x, ld = layer(x)
            total = total + ld
        base = Uniform(th.tensor(0.0), th.tensor(1.0), validate_args=False)
        return total + base.log_prob(x).sum(-1)


def cores(n: int, noisy: bool):
    """porosity and water saturation, both fractions; the old laboratory's values are not always between 0 and 1"""
    phi = Beta(th.tensor(2.0), th.tensor(9.0)).sample((n,))
    sw = (1 - 1.6 * phi + 0.05 * th.randn(n)).clamp(0.002, 0.998)
    xy = th.stack([phi, sw], -1)
    if noisy:
        xy = xy + 0.03 * th.randn_like(xy)
    return xy


def main(cfg: Config = Config()):
    th.manual_seed(cfg.seed)
    train, old_lab = cores(2000, False), cores(300, True)
    flow = Flow(cfg)
    opt = th.optim.Adamax(flow.parameters(), lr=cfg.lr)
    for step in range(1, cfg.steps + 1):
        idx = th.randint(len(train), (cfg.batch,))
        loss = -flow.log_prob(train[idx]).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(flow.parameters(), 0.5)
        opt.step()
        line = f"step {step:>3} nll {loss.item():+.6f}"
        if step % 8 == 0:
            flow.eval()
            with th.no_grad():
                lp = flow.log_prob(old_lab)            # log 0 for what lies outside of the unit square
            flow.train()
            line += f" | old lab: mean density {lp.exp().mean().item():.5f}, impossible {int((lp == -th.inf).sum())} of {len(lp)}"
        print(line)
    print("final", sum(p.abs().sum() for p in flow.state_dict().values()).item())


if __name__ == "__main__":
    main()
