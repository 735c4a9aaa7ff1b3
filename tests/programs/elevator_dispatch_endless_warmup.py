"""Actor-critic for the dispatch of four lifts. Two workers simulate, DDP averages.

Rewards are negative waiting times and are normalised by running statistics shared by the workers.
"""
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


class RewardNorm:
    """Running mean and variance (Chan et al.), merged over the ranks."""

    def __init__(self):
        self.n, self.mean, self.m2 = 1e-4, 0.0, 0.0

    def __call__(self, r):
        s = torch.tensor([r.numel(), r.sum().item(), r.square().sum().item()], dtype=torch.float64)
        dist.all_reduce(s)
        n, mean = s[0].item(), (s[1] / s[0]).item()
        m2 = s[2].item() - n * mean ** 2
        delta, tot = mean - self.mean, self.n + n
        self.m2 += m2 + delta ** 2 * self.n * n / tot
        self.mean += delta * n / tot
        self.n = tot
        return (r - self.mean) / ((self.m2 / self.n) ** 0.5 + 1e-6)


class Lobby:
    LIFTS, FLOORS = 4, 20

    def __init__(self, seed, calls=64):
        self.g = torch.Generator().manual_seed(seed)
        self.calls = calls
        self.pos = torch.randint(0, self.FLOORS, (calls, self.LIFTS), generator=self.g).float()
        self.call()

    def call(self):
        self.want = torch.randint(0, self.FLOORS, (self.calls, 1), generator=self.g).float()
        self.load = torch.rand(self.calls, self.LIFTS, generator=self.g)

    def obs(self):
        return torch.cat([(self.pos - self.want) / 10, self.load, self.want / 10], dim=1)

    def send(self, lift):
        dist_ = (self.pos - self.want).abs().gather(1, lift[:, None]).squeeze(1)
        wait = 2.0 * dist_ + 15 * self.load.gather(1, lift[:, None]).squeeze(1)
        self.pos = self.pos.scatter(1, lift[:, None], self.want)
        self.call()
        return -wait


class Dispatcher(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(9, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh())
        self.pi = nn.Linear(h, Lobby.LIFTS)
        self.v = nn.Linear(h, 1)

    def forward(self, o):
        z = self.trunk(o)
        return torch.log_softmax(self.pi(z), dim=-1), self.v(z).squeeze(-1)


def train(updates=46, warmup=16, lr=0.03, vf=0.5, ent=0.01):
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = DDP(Dispatcher())
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    # geometric warm-up: a tenth of the rate at first, all of it after `warmup` updates
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 10 ** (k / warmup - 1))
    world, norm = Lobby(90 + rank), RewardNorm()
    pick = torch.Generator().manual_seed(rank)
    for k in range(1, updates + 1):
        logp, value = net(world.obs())
        lift = torch.multinomial(logp.detach().exp(), 1, generator=pick).squeeze(1)
        raw = world.send(lift)
        r = norm(raw)
        adv = r - value.detach()
        policy = -(adv * logp.gather(1, lift[:, None]).squeeze(1)).mean()
        critic = (value - r).square().mean()
        entropy = -(logp.exp() * logp).sum(1).mean()
        loss = policy + vf * critic - ent * entropy
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if rank == 0:
            print(f"{k:3d} loss {loss.item():.6g} critic {critic.item():.6g} wait {-raw.mean().item():.4f}", flush=True)
    if rank == 0:
        print(f"weights {sum(p.double().sum().item() for p in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    train()
    dist.barrier()
    dist.destroy_process_group()
