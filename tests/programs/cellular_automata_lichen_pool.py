"""Grow a lichen patch on a rock with a neural cellular automaton and a sample pool."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

SIZE, CH, POOL, BATCH, ROUNDS = 14, 8, 24, 4, 30


def lichen(size):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    r = torch.hypot(yy - size / 2 + 0.5, xx - size / 2 + 0.5)
    rim = ((r < 5) & (r > 3)).float()
    heart = (r <= 3).float()
    return torch.stack([rim * 0.8 + heart * 0.3, heart * 0.9 + rim * 0.4, rim * 0.2, (r < 5).float()])


def seed_state():
    s = torch.zeros(CH, SIZE, SIZE)
    s[3:, SIZE // 2, SIZE // 2] = 1.0
    return s


class Thallus(nn.Module):
    def __init__(self):
        super().__init__()
        ident = torch.zeros(3, 3)
        ident[1, 1] = 1
        sx = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        self.register_buffer("kernel", torch.stack([ident, sx, sx.T]).repeat(CH, 1, 1)[:, None])
        self.inner = nn.Conv2d(CH * 3, 32, 1)
        self.outer = nn.Conv2d(32, CH, 1, bias=False)
        nn.init.zeros_(self.outer.weight)

    @staticmethod
    def living(s):
        return F.max_pool2d(s[:, 3:4], 3, stride=1, padding=1) > 0.1

    def forward(self, s, gen):
        before = self.living(s)
        seen = F.conv2d(s, self.kernel, padding=1, groups=CH)
        fire = (torch.rand(s.shape[0], 1, SIZE, SIZE, generator=gen) < 0.5).float()
        s = s + self.outer(F.relu(self.inner(seen))) * fire
        return s * (before & self.living(s)).float()


def main():
    torch.manual_seed(3)
    gen = torch.Generator().manual_seed(8)
    goal = lichen(SIZE)
    ca = Thallus()
    opt = torch.optim.Adam(ca.parameters(), lr=4e-3)
    pool = torch.stack([seed_state() for _ in range(POOL)])
    known = torch.full((POOL,), math.inf)
    for rnd in range(1, ROUNDS + 1):
        pick = torch.randperm(POOL, generator=gen)[:BATCH]
        # the worst first: states that nobody has judged yet count as the worst of all
        pick = pick[torch.argsort(known[pick], descending=True, stable=True)]
        s = pool[pick].clone()
        s[0] = seed_state()
        if rnd % 6 == 0:
            s[-1, :, :, : SIZE // 2] = 0.0
        for _ in range(int(torch.randint(6, 13, (1,), generator=gen))):
            s = ca(s, gen)
        each = (s[:, :4] - goal).pow(2).mean(dim=(1, 2, 3))
        loss = each.mean()
        opt.zero_grad()
        loss.backward()
        for p in ca.parameters():
            p.grad /= p.grad.norm() + 1e-8
        opt.step()
        pool[pick] = s.detach()
        known[pick] = each.detach()
        fresh = int(torch.isinf(known).sum())
        print(f"round {rnd:2d}  loss {loss.item():.5f}  unseen {fresh:2d}  best {known.min().item():.4f}")
    print("sum of squared weights", f"{sum(float(p.detach().pow(2).sum()) for p in ca.parameters()):.6f}")


if __name__ == "__main__":
    main()
