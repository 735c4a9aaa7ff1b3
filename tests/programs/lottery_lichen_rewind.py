"""Lottery tickets on lichen spectra: train, prune 40 % of what is left by magnitude, rewind to step 4, again."""
import torch
import torch.nn.functional as F
from torch import nn


class MaskedLinear(nn.Linear):
    def __init__(self, *a):
        super().__init__(*a)
        self.register_buffer("mask", torch.ones_like(self.weight, dtype=torch.bool))

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)

    @property
    def score(self):
        # pruned weights can never come back: -inf
        return self.weight.detach().abs().masked_fill(~self.mask, -torch.inf)


class Lichen(nn.Sequential):
    def __init__(self):
        super().__init__(MaskedLinear(30, 64), nn.ReLU(), MaskedLinear(64, 64), nn.ReLU(), MaskedLinear(64, 7))

    def prunable(self):
        return [m for m in self if isinstance(m, MaskedLinear)]

    def prune(self, share):
        scores = torch.cat([m.score.flatten() for m in self.prunable()])
        alive = torch.isfinite(scores)
        keep = int(alive.sum() * (1 - share))
        threshold = scores.topk(keep).values[-1]
        for m in self.prunable():
            m.mask.copy_(m.score >= threshold)

    def density(self):
        kept = sum(int(m.mask.sum()) for m in self.prunable())
        return kept / sum(m.mask.numel() for m in self.prunable())


class Spectra:
    def __init__(self, n=420, seed=1):
        g = torch.Generator().manual_seed(seed)
        centres = 1.4 * torch.randn(7, 30, generator=g)
        self.y = torch.randint(0, 7, (n,), generator=g)
        self.x = centres[self.y] + 0.9 * torch.randn(n, 30, generator=g)
        self.g = g

    def batches(self, size, count):
        for _ in range(count):
            pick = torch.randint(0, len(self.y), (size,), generator=self.g)
            yield self.x[pick], self.y[pick]


class TicketHunt:
    REWIND_AT = 4

    def __init__(self, net, data):
        self.net, self.data, self.snapshot, self.step = net, data, None, 0

    def remember(self):
        self.snapshot = {k: v.clone() for k, v in self.net.state_dict().items() if not k.endswith("mask")}

    def rewind(self):
        # weights of the fourth step, masks of today; the optimizer is made anew
        self.net.load_state_dict(self.snapshot, strict=False)

    def round(self, r, length=18):
        opt = torch.optim.SGD(self.net.parameters(), lr=0.08, momentum=0.9, weight_decay=1e-4)
        for i, (x, y) in enumerate(self.data.batches(60, length), 1):
            loss = F.cross_entropy(self.net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            self.step += 1
            if r == 0 and i == self.REWIND_AT:
                self.remember()
            print(f"r{r} step {self.step:02d} loss {loss.item():.6f} density {self.net.density():.3f}")

    def __call__(self, rounds=4):
        for r in range(rounds):
            self.round(r)
            if r + 1 < rounds:
                self.net.prune(0.4)
                self.rewind()


if __name__ == "__main__":
    torch.manual_seed(21)
    TicketHunt(Lichen(), Spectra())()
