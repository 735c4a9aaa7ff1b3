"""Instruct tuner for the seed catalogue assistant, four tasks on one trunk.

Batches a task: sampled with temperature (counts ** (1/T)).  Weights of the tasks: Dynamic Weight Average, that is
softmax of how fast each loss is still falling, L(t-1) / L(t-2).
"""
import torch
from torch import nn
import torch.nn.functional as F

TASKS = {}


def task(name, size):
    def wrap(fn):
        TASKS[name] = (fn, size)
        return fn
    return wrap


@task("describe", 4000)
def describe(h, x, net):
    return F.cross_entropy(net.heads["describe"](h), x.max(1).values)


@task("sow_month", 900)
def sow_month(h, x, net):
    return F.smooth_l1_loss(net.heads["sow_month"](h).squeeze(-1), (x[:, 0]).float() / 12)


@task("hardy", 300)
def hardy(h, x, net):
    # is it hardy? easily told from the first word; a hinge with a small margin is enough
    y = torch.where(x[:, 0] < 6, 1.0, -1.0)
    return F.relu(0.1 - y * net.heads["hardy"](h).squeeze(-1)).mean()


@task("pair", 150)
def pair(h, x, net):
    z = F.normalize(net.heads["pair"](h), dim=-1)
    same = (x[:, 0, None] // 4 == x[None, :, 0] // 4).float()
    return ((z @ z.T) - same).square().mean()


class Tuner(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(12, d)
        self.trunk = nn.Sequential(nn.Linear(4 * d, 64), nn.ReLU(), nn.Linear(64, d), nn.ReLU())
        outs = {"describe": 12, "sow_month": 1, "hardy": 1, "pair": 8}
        self.heads = nn.ModuleDict({k: nn.Linear(d, n) for k, n in outs.items()})

    def forward(self, x):
        return self.trunk(self.emb(x).flatten(1))


class DynamicWeightAverage:
    def __init__(self, names, temperature=2.0):
        self.names, self.T = names, temperature
        self.past = []

    def weights(self):
        if len(self.past) < 2:
            return torch.ones(len(self.names))
        rate = self.past[-1] / self.past[-2]
        return len(self.names) * torch.softmax(rate / self.T, 0)

    def remember(self, losses):
        self.past = (self.past + [losses.detach().clone()])[-2:]


class TemperatureSampler:
    """How many rows each task gets in a batch of `total`; at least two."""

    def __init__(self, T, total, seed):
        counts = torch.tensor([n for _, n in TASKS.values()], dtype=torch.float) ** (1 / T)
        self.p, self.total, self.g = counts / counts.sum(), total, torch.Generator().manual_seed(seed)

    def draw(self):
        picks = torch.multinomial(self.p, self.total, replacement=True, generator=self.g)
        n = torch.bincount(picks, minlength=len(self.p)).clamp(min=2)
        return [torch.randint(0, 12, (int(k), 4), generator=self.g) for k in n]


def run(steps=30):
    torch.manual_seed(400)
    net = Tuner()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    dwa = DynamicWeightAverage(list(TASKS))
    sampler = TemperatureSampler(T=3.0, total=48, seed=6)
    for step in range(1, steps + 1):
        losses = torch.stack([fn(net(x), x, net) for (fn, _), x in zip(TASKS.values(), sampler.draw())])
        w = dwa.weights()
        total = (w * losses).sum()
        opt.zero_grad()
        total.backward()
        opt.step()
        dwa.remember(losses)
        print(f"{step} {total.item():.6f} " + " ".join(f"{n}={v:.5f}" for n, v in zip(TASKS, losses.tolist())))
    print("sum", sum(p.double().sum().item() for p in net.parameters()))


run()
