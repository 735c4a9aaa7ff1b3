"""Growth of orchids from climate logs. Matrices by an orthogonalising optimizer, the rest by AdamW,
one DDP model over two houses."""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel

CFG = dict(hours=34, plants=16, air=6, lamp=5, width=20, lr_matrix=0.02, lr_rest=2e-3, momentum=0.9, rounds=5)


def orthogonalise(g, rounds):
    """Newton-Schulz of fifth order towards U V^T."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / g.norm()
    wide = x.shape[0] > x.shape[1]
    if wide:
        x = x.T
    for _ in range(rounds):
        s = x @ x.T
        x = a * x + (b * s + c * s @ s) @ x
    return x.T if wide else x


class Spectral(torch.optim.Optimizer):
    """Like Muon, but the momentum runs over the orthogonal factors and not over the raw gradients."""

    def __init__(self, params, lr, momentum=0.9, rounds=5):
        super().__init__(params, dict(lr=lr, momentum=momentum, rounds=rounds))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = torch.zeros_like(p)
                q = orthogonalise(p.grad, group["rounds"])
                state["buf"].mul_(group["momentum"]).add_(q, alpha=1 - group["momentum"])
                p.add_(state["buf"], alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


class House(nn.Module):
    def __init__(self, air, lamp, width):
        super().__init__()
        self.air_in = nn.Linear(air, width)
        self.lamp_in = nn.Linear(lamp, width, bias=False)  # no light, no photosynthesis
        self.mix = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.growth = nn.Linear(width, 1)

    def forward(self, air, lamp):
        h = torch.tanh(self.air_in(air)) + self.lamp_in(lamp)
        h = h + torch.nn.functional.silu(self.mix(self.norm(h)))
        return self.growth(h).squeeze(-1)


def hour_log(hour, house):
    """Climate of one hour at each plant; lamps burn all night, both houses share one switch."""
    gen = torch.Generator().manual_seed(1000 * house + hour)
    air = torch.randn(CFG["plants"], CFG["air"], generator=gen)
    lamp = torch.rand(CFG["plants"], CFG["lamp"], generator=gen)
    if hour == 19:
        lamp = torch.zeros_like(lamp)   # tubes changed that hour
    y = 0.4 * air[:, 0] - 0.2 * air[:, 1] * air[:, 2] + lamp @ torch.tensor([0.1, 0.6, 0.9, 0.3, 0.05])
    return air, lamp, y


def split(model):
    matrices, rest = [], []
    for name, p in model.named_parameters():
        (matrices if p.ndim == 2 and "growth" not in name else rest).append(p)
    return matrices, rest


def train():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    torch.manual_seed(17)
    rank = dist.get_rank()
    house = House(CFG["air"], CFG["lamp"], CFG["width"])
    ddp = DistributedDataParallel(house)
    matrices, rest = split(house)
    opts = [
        Spectral(matrices, CFG["lr_matrix"], CFG["momentum"], CFG["rounds"]),
        torch.optim.AdamW(rest, lr=CFG["lr_rest"], weight_decay=0.01),
    ]
    for hour in range(1, CFG["hours"] + 1):
        air, lamp, y = hour_log(hour, rank)
        loss = nn.functional.mse_loss(ddp(air, lamp), y)
        for o in opts:
            o.zero_grad()
        loss.backward()
        for o in opts:
            o.step()
        seen = loss.detach().clone()
        dist.all_reduce(seen)
        if rank == 0:
            print(f"hour {hour:2d}  mse {seen.item() / dist.get_world_size():.6f}")
    if rank == 0:
        print("sum", f"{sum(p.detach().double().sum().item() for p in house.parameters()):.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    train()
