"""Codistillation of two wind power models, one per rank and per mast, after Anil et al.

No gradient is shared. Each step both ranks predict a common probe set, swap the predictions with isend/recv and are
drawn a little towards each other. Each rank owns its weights and its optimizer (they are not even the same).
"""
import torch
import torch.distributed as dist
from torch import nn

STEPS = 24
HOURS = 16


class MastModel(nn.Module):
    """Correct the wind vector for the wake of the mast (a linear map, no bias), take its speed, learn a power curve."""

    def __init__(self, hidden):
        super().__init__()
        self.wake = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.wake.weight)
        self.curve = nn.Sequential(nn.Linear(1, hidden), nn.Sigmoid(), nn.Linear(hidden, 1))

    def speed(self, uv):
        v = self.wake(uv)
        return torch.sqrt((v * v).sum(-1, keepdim=True))

    def forward(self, uv):
        return self.curve(self.speed(uv)).squeeze(-1)


def mast_hours(rank, step):
    g = torch.Generator().manual_seed(10_000 * (rank + 1) + step)
    uv = torch.randn(HOURS, 2, generator=g) * 1.5 + torch.tensor([1.0, 0.5])
    uv = (uv * 10).round() / 10                       # cup anemometers report tenths
    uv[(uv == 0).all(-1)] = 0.1
    if rank == 1 and step == 15:
        uv[6] = 0.0                                   # a dead calm at the valley mast
    power = torch.sigmoid(2 * (uv.norm(dim=-1) - 2.0))
    return uv, power + 0.02 * torch.randn(HOURS, generator=g)


class Peer:
    def __init__(self, rank):
        self.rank, self.other = rank, 1 - rank

    def swap(self, mine):
        theirs = torch.empty_like(mine)
        work = dist.isend(mine.detach().contiguous(), self.other)
        dist.recv(theirs, self.other)
        work.wait()
        return theirs


def optimizer_of(rank, model):
    if rank == 0:
        return torch.optim.RMSprop(model.parameters(), lr=0.01)
    return torch.optim.NAdam(model.parameters(), lr=0.02)


def train(rank):
    torch.manual_seed(20 + rank)
    model = MastModel(hidden=12 if rank == 0 else 8)
    opt = optimizer_of(rank, model)
    peer = Peer(rank)
    probe = torch.stack(torch.meshgrid(torch.linspace(-3, 3, 4), torch.linspace(-3, 3, 4), indexing="ij"), -1).reshape(-1, 2)
    for step in range(1, STEPS + 1):
        uv, power = mast_hours(rank, step)
        on_probe = model(probe)
        theirs = peer.swap(on_probe)
        fit = (model(uv) - power).square().mean()
        agree = (on_probe - theirs).square().mean()
        weight = min(1.0, step / 10) * 0.3            # burn in
        loss = fit + weight * agree
        opt.zero_grad()
        loss.backward()
        opt.step()
        if rank == 0:
            print(f"hour block {step:2d}  fit {fit.item():.6f}  agree {agree.item():.6f}  loss {loss.item():.6f}")
    return model


def main():
    dist.init_process_group("gloo")
    model = train(dist.get_rank())
    total = torch.stack([p.detach().sum() for p in model.parameters()]).sum()
    dist.reduce(total, dst=0)
    if dist.get_rank() == 0:
        print(f"both masts: weights {total.item():.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
