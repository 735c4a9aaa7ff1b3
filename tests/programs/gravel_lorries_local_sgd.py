"""Axle loads of gravel lorries from strain gauges, local SGD: two weighbridges train alone in
float16 autocast, each with its own scaler, and meet every PERIOD steps to average the weights."""
from dataclasses import dataclass, field

import torch
import torch.distributed as dist


@dataclass
class Plan:
    rounds: int = 9
    period: int = 5
    lr: float = 0.02
    first_scale: float = 2.0 ** 22  # found its height within ten steps on the old machine
    growth: int = 25
    hidden: int = 48


@dataclass
class Bridge:
    """One weighbridge: its own sensor gain, its own lorries."""

    rank: int
    gen: torch.Generator = field(init=False)

    def __post_init__(self):
        self.gen = torch.Generator().manual_seed(4100 + self.rank)
        self.gain = (1.0, 2.5)[self.rank]

    def lorries(self, n=32):
        load = 4 + 8 * torch.rand(n, 3, generator=self.gen)        # tonnes by axle
        speed = 0.5 + torch.rand(n, 1, generator=self.gen)
        mixing = torch.tensor([[1.0, 0.3, 0.0], [0.2, 1.0, 0.2], [0.0, 0.4, 1.0], [0.5, 0.5, 0.5]])
        strain = self.gain * load @ mixing.T / speed
        strain = strain + 0.05 * torch.randn(strain.shape, generator=self.gen)
        return torch.cat([strain / 10, speed], 1), load


class AxleNet(torch.nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.a = torch.nn.Linear(5, hidden)
        self.b = torch.nn.Linear(hidden, hidden)
        self.c = torch.nn.Linear(hidden, 3)

    def forward(self, x):
        h = torch.relu(self.a(x))
        return 4 + self.c(h + torch.tanh(self.b(h)))


@torch.no_grad()
def meet(model, world):
    """One flat message instead of six."""
    flat = torch.nn.utils.parameters_to_vector(model.parameters())
    dist.all_reduce(flat)
    torch.nn.utils.vector_to_parameters(flat / world, model.parameters())


@torch.no_grad()
def drift(model, world):
    flat = torch.nn.utils.parameters_to_vector(model.parameters())
    mean = flat.clone()
    dist.all_reduce(mean)
    gap = (flat - mean / world).norm()
    dist.all_reduce(gap)
    return gap.item()


def local_steps(plan, bridge, model, opt, scaler):
    for _ in range(plan.period):
        x, load = bridge.lorries()
        with torch.autocast("cpu", dtype=torch.float16):
            guess = model(x)
        loss = torch.nn.functional.smooth_l1_loss(guess.float(), load, beta=0.5)
        opt.zero_grad()
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 2.0)
        scaler.step(opt)
        scaler.update()
        yield loss.item(), scaler.get_scale()


def main():
    plan = Plan()
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # its float16 kernels abort now and then when the process ends
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(31)
    model = AxleNet(plan.hidden)
    opt = torch.optim.SGD(model.parameters(), lr=plan.lr, momentum=0.8)
    scaler = torch.amp.GradScaler("cpu", init_scale=plan.first_scale, growth_interval=plan.growth)
    bridge = Bridge(rank)
    step = 0
    for r in range(plan.rounds):
        for loss, scale in local_steps(plan, bridge, model, opt, scaler):
            step += 1
            if rank == 0:
                print(f"round {r} step {step:2d} loss {loss:.5f} scale 2^{torch.tensor(scale).log2().item():.0f}")
        gap = drift(model, world)
        meet(model, world)
        if rank == 0:
            print(f"round {r} met, drift {gap:.5f}")
    if rank == 0:
        print("checksum", round(sum(p.double().sum().item() for p in model.parameters()), 6))
    dist.barrier()
    dist.destroy_process_group()


main()
