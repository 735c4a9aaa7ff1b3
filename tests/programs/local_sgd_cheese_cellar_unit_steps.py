"""Local SGD for two cheese cellars: which wheels will crack?

Each cellar trains on its own wheels and the weights are averaged every few steps only (the line
between the cellars is slow).  Steps have unit length, so that no cellar runs away between two
averages.  Spawns its two workers itself.
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD = 2
STEPS = 35
AVERAGE_EVERY = 5
WHEELS = 12


class UnitStep(torch.optim.Optimizer):
    """Moves all weights together by `lr` along the negative gradient, whatever its length."""

    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            live = [p for p in group["params"] if p.grad is not None]
            length = torch.stack([p.grad.square().sum() for p in live]).sum().sqrt()
            for p in live:
                direction = p.grad / length
                p.sub_(direction, alpha=group["lr"])


def cellar_book(rank):
    """Per step: features (humidity, salt, turnings, age, draught), crack +1/-1, and how sure the
    cellarman is of his verdict (0: not inspected)."""
    g = torch.Generator().manual_seed(606 + rank)
    w = torch.tensor([1.2, -0.7, -0.9, 0.4, 1.0])
    for step in range(1, STEPS + 1):
        x = torch.randn(WHEELS, 5, generator=g)
        y = torch.sign(x @ w + 0.8 * torch.randn(WHEELS, generator=g))
        sure = torch.randint(0, 4, (WHEELS,), generator=g).float() / 3
        if rank == 0 and step == 18:
            sure = sure * 0             # feast of St Uguzo, nobody went down
        yield step, x, y, sure


def make_model():
    return torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))


def average(model):
    flat = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / WORLD, model.parameters())


def cellar(rank, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=WORLD)
    torch.manual_seed(1)
    model = make_model()
    opt = UnitStep(model.parameters(), lr=0.12)
    decay = torch.optim.lr_scheduler.ExponentialLR(opt, gamma=0.97)

    for step, x, y, sure in cellar_book(rank):
        margin = y * model(x).squeeze(1)
        loss = (sure * torch.relu(1 - margin)).sum() / WHEELS
        opt.zero_grad()
        loss.backward()
        opt.step()
        decay.step()
        synced = step % AVERAGE_EVERY == 0
        if synced:
            average(model)
        if rank == 0:
            print(f"{step:2d} hinge {loss.item():.6f}{' averaged' if synced else ''}", flush=True)

    if rank == 0:
        total = sum(p.detach().double().sum().item() for p in model.parameters())
        print(f"both cellars, sum of weights {total:.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as tmp:
        mp.spawn(cellar, args=(os.path.join(tmp, "store"),), nprocs=WORLD, join=True)
