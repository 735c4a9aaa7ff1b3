import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE, CH, POOL, BATCH = 14, 10, 24, 4
torch.manual_seed(5)
rng = np.random.default_rng(8)


def coat_of_arms():
    yy, xx = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    shield = ((xx - 6.5).abs() < 4.5 - (yy - 6).clamp(min=0) * 0.7) & (yy > 2) & (yy < 12)
    bend = (xx - yy).abs() < 2
    img = torch.zeros(4, SIZE, SIZE)
    img[0] = (shield & bend).float()
    img[2] = (shield & ~bend).float()
    img[3] = shield.float()
    return img


class Automaton(nn.Module):
    def __init__(self):
        super().__init__()
        ident = torch.zeros(3, 3)
        ident[1, 1] = 1
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        kernels = torch.stack([ident, sobel, sobel.T])[:, None].repeat(CH, 1, 1, 1)
        self.register_buffer("kernels", kernels)
        self.update = nn.Sequential(nn.Conv2d(3 * CH, 40, 1), nn.ReLU(), nn.Conv2d(40, CH, 1))
        nn.init.normal_(self.update[2].weight, std=0.02)

    def living(self, s):
        return F.max_pool2d(s[:, 3:4], 3, 1, 1) > 0.1

    def forward(self, s):
        before = self.living(s)
        delta = self.update(F.conv2d(s, self.kernels, padding=1, groups=CH))
        fire = torch.rand(s.shape[0], 1, SIZE, SIZE) < 0.6
        s = s + delta * fire
        return s * (before & self.living(s))


def seed_grid(n):
    s = torch.zeros(n, CH, SIZE, SIZE)
    s[:, 3:, SIZE // 2, SIZE // 2] = 1.0
    return s


axis = torch.linspace(-1, 1, SIZE)
grid = torch.stack(torch.meshgrid(axis, axis, indexing="ij"))


def balance_point(s):
    ink = s[:, 3].clamp(0, 1)
    return (ink[:, None] * grid).sum((2, 3)) / ink.sum((1, 2))[:, None]


target = coat_of_arms()
target_point = balance_point(torch.cat([target, torch.zeros(CH - 4, SIZE, SIZE)])[None])[0]
ca = Automaton()
opt = torch.optim.Adam(ca.parameters(), lr=2e-3)
pool = seed_grid(POOL)

for it in range(1, 41):
    pick = torch.from_numpy(rng.choice(POOL, BATCH, replace=False))
    batch = pool[pick]
    order = (batch[:, :4] - target).pow(2).mean((1, 2, 3)).argsort(descending=True)
    batch[order[0]] = seed_grid(1)[0]
    if it > 9:  # a hole is cut into the best one, for regeneration
        cy, cx, radius = rng.uniform(-0.5, 0.5), rng.uniform(-0.5, 0.5), rng.uniform(0.2, 0.75)
        hole = (grid[0] - cy) ** 2 + (grid[1] - cx) ** 2 < radius ** 2
        batch[order[-1]] *= ~hole
    for _ in range(int(rng.integers(8, 13))):
        batch = ca(batch)
    picture = (batch[:, :4] - target).pow(2).mean()
    balance = (balance_point(batch) - target_point).pow(2).sum(1).mean()
    loss = picture + 0.1 * balance
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_value_(ca.parameters(), 0.5)
    opt.step()
    pool[pick] = batch.detach()
    print(f"it {it:2d}  picture {picture.item():.5f}  balance {balance.item():.5f}  loss {loss.item():.5f}")

print("weights, sum of squares:", sum(float((p.detach() ** 2).sum()) for p in ca.parameters()))
