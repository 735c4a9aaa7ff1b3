# Dating amphora sherds from rim profiles. FSDP2 (fully_shard) + an AdamW that works on the local shards only,
# because we want to see the update RMS per rank (Adafactor people swear by it).
import math
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


@dataclass
class Hyper:
    steps: int = 36
    batch: int = 96
    width: int = 20
    lr: float = 3e-3
    betas: tuple = (0.9, 0.98)
    eps: float = 1e-8
    decay: float = 0.02
    warmup: int = 6
    seed: int = 431


@dataclass
class ShardState:
    m: torch.Tensor
    v: torch.Tensor
    t: int = field(default=0)


class LocalAdamW(torch.optim.Optimizer):
    """AdamW over `p.to_local()`. No communication in step()."""

    def __init__(self, params, hp):
        super().__init__(params, dict(lr=hp.lr, betas=hp.betas, eps=hp.eps, decay=hp.decay))
        self.rms = {}

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for i, p in enumerate(group["params"]):
                if p.grad is None:
                    continue
                w, g = p.to_local(), p.grad.to_local()
                if "s" not in self.state[p]:
                    self.state[p]["s"] = ShardState(torch.zeros_like(w), torch.zeros_like(w))
                s = self.state[p]["s"]
                s.t += 1
                s.m.lerp_(g, 1 - b1)
                s.v.mul_(b2).addcmul_(g, g, value=1 - b2)
                u = (s.m / (1 - b1 ** s.t)) / ((s.v / (1 - b2 ** s.t)).sqrt() + group["eps"])
                self.rms[i] = u.pow(2).mean().sqrt()
                w.mul_(1 - group["lr"] * group["decay"]).add_(u, alpha=-group["lr"])


class RimEncoder(nn.Module):
    def __init__(self, points, d):
        super().__init__()
        self.conv = nn.Conv1d(1, d, 5, padding=2)
        self.mid = nn.Linear(d, d)
        self.year = nn.Linear(d, 1)

    def forward(self, profile):
        h = torch.relu(self.conv(profile[:, None])).mean(-1)
        return self.year(torch.tanh(self.mid(h)))


def sherds(rank, hp):
    """Rim curves: everted rims are late, thick ones early. Dates in centuries from 150 BC."""
    g = torch.Generator().manual_seed(hp.seed * 10 + rank)
    grid = torch.linspace(0, math.pi, 32)
    while True:
        eversion = torch.rand(hp.batch, 1, generator=g)
        thick = torch.rand(hp.batch, 1, generator=g)
        curve = eversion * torch.sin(grid) * 2 + thick * torch.cos(3 * grid) + 0.05 * torch.randn(hp.batch, 32, generator=g)
        yield curve, (3 * eversion - 2 * thick).squeeze(-1)


def laplace_nll(pred, target, scale=0.12):
    # negative once the dates are better than the scale
    return ((pred - target).abs() / scale + math.log(2 * scale)).mean()


def run(hp):
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    torch.manual_seed(hp.seed)
    model = RimEncoder(32, hp.width)
    fully_shard(model.mid, mesh=mesh)
    fully_shard(model, mesh=mesh)
    opt = LocalAdamW(model.parameters(), hp)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: min(1.0, (k + 1) / hp.warmup))
    names = [n for n, _ in model.named_parameters()]
    for step, (x, y) in zip(range(1, hp.steps + 1), sherds(rank, hp)):
        loss = laplace_nll(model(x).squeeze(-1), y)
        loss.backward()
        opt.step()
        sched.step()
        opt.zero_grad()
        shown = torch.stack([loss.detach()] + [opt.rms[i] for i in range(len(names))])
        everyone = [torch.empty_like(shown) for _ in range(world)]
        dist.all_gather(everyone, shown)
        if rank == 0:
            line = f"{step:3d} nll {torch.stack(everyone)[:, 0].mean():+.5f}"
            if step % 4 == 0:  # year.bias has one element: the second rank holds none of it
                line += "  rms(year.bias) " + " ".join(f"{e[1 + names.index('year.bias')]:.4f}" for e in everyone)
            print(line, flush=True)
    total = sum((p.to_local().detach().double().sum() for p in model.parameters()), torch.zeros((), dtype=torch.float64))
    dist.all_reduce(total)
    if rank == 0:
        print(f"weights {total.item():.6f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    run(Hyper())
    dist.destroy_process_group()
