# Flow matching on the Barnsley fern. The network predicts the clean point, the velocity follows from it.
# Times are logit-normal; their spread grows so that both ends are seen more often late in training.
import copy
import math

import torch
import torch.nn as nn

torch.manual_seed(11)
STEPS = 50
BATCH = 48
DTYPE = torch.bfloat16
gen = torch.Generator().manual_seed(26)


def barnsley(n):
    maps = torch.tensor([[0.0, 0.0, 0.0, 0.16, 0.0, 0.0],
                         [0.85, 0.04, -0.04, 0.85, 0.0, 1.6],
                         [0.2, -0.26, 0.23, 0.22, 0.0, 1.6],
                         [-0.15, 0.28, 0.26, 0.24, 0.0, 0.44]])
    p = torch.zeros(n, 2)
    chances = torch.tensor([0.01, 0.85, 0.07, 0.07])
    for _ in range(40):
        k = torch.multinomial(chances, n, replacement=True, generator=gen)
        a, b, c, d, e, f = maps[k].unbind(1)
        p = torch.stack([a * p[:, 0] + b * p[:, 1] + e, c * p[:, 0] + d * p[:, 1] + f], 1)
    return (p - p.mean(0)) / p.std(0)


class TimeFeatures(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.register_buffer("freq", 2 ** torch.arange(width // 2).float() * math.pi)

    def forward(self, t):
        a = t[:, None].float() * self.freq
        return torch.cat([a.sin(), a.cos()], 1)


class CleanPoint(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.time = TimeFeatures(12)
        self.net = nn.Sequential(nn.Linear(14, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 2))

    def forward(self, x, t):
        return self.net(torch.cat([x.float(), self.time(t)], 1))


class Ema:
    def __init__(self, model, decay):
        self.shadow, self.decay = copy.deepcopy(model).requires_grad_(False), decay

    def update(self, model):
        with torch.no_grad():
            for s, p in zip(self.shadow.parameters(), model.parameters()):
                s.lerp_(p, 1 - self.decay)


def sample_times(n, step):
    spread = 0.6 + 1.8 * step / STEPS
    z = spread * torch.randn(n, generator=gen)
    return torch.sigmoid(z).to(DTYPE)


def velocity(model, x, t):
    return (model(x, t) - x) / (1 - t)[:, None].float()


points = barnsley(4096)
model = CleanPoint()
ema = Ema(model, 0.95)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)

for step in range(1, STEPS + 1):
    x1 = points[torch.randint(len(points), (BATCH,), generator=gen)]
    x0 = torch.randn(BATCH, 2, generator=gen)
    t = sample_times(BATCH, step)
    xt = (1 - t)[:, None].float() * x0 + t[:, None].float() * x1
    v = velocity(model, xt, t)
    # a pseudo-Huber distance, so that late times with their large velocities do not rule
    loss = (((v - (x1 - x0)) ** 2).sum(1) + 0.01).sqrt().mean()
    opt.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    opt.step()
    ema.update(model)
    print("step %d huber %.6f" % (step, loss.item()), flush=True)


@torch.no_grad()
def draw(n, rounds=8):
    x = torch.randn(n, 2, generator=gen)
    for i in range(rounds):
        x = x + velocity(ema.shadow, x, torch.full((n,), i / rounds)) / rounds
    return x


print("drawn spread %.4f" % draw(64).std().item(), flush=True)
print("%.5f" % sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)
