#!/usr/bin/env python3
import argparse
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler


class NoamLR(LRScheduler):
    """lr = factor * d^-0.5 * ( t^-0.5 , t * warmup^-1.5 )"""

    def __init__(self, optimizer, d, warmup, factor=1.0, last_epoch=-1):
        self.d, self.warmup, self.factor = d, warmup, factor
        super().__init__(optimizer, last_epoch)

    def get_lr(self):
        t = self.last_epoch + 1
        return [self.factor * self.d ** -0.5 * max(t ** -0.5, t * self.warmup ** -1.5) for _ in self.base_lrs]


class DelayForecaster(nn.Module):
    """encoder reads today's delays, decoder writes those of the next stops"""

    def __init__(self, d):
        super().__init__()
        self.encoder = nn.GRU(2, d, batch_first=True)
        self.decoder = nn.GRUCell(1, d)
        self.to_delay = nn.Linear(d, 1)

    def forward(self, seen, told):
        _, h = self.encoder(seen)
        h, outs = h[0], []
        for before in told.unbind(1):                 # teacher forcing: the true delay of the stop before
            h = self.decoder(before[:, None], h)
            outs.append(self.to_delay(h))
        return torch.cat(outs, 1)


def days(n, gen):
    base = torch.rand(n, 1, generator=gen) * 4
    noise = torch.randn(n, 14, generator=gen).cumsum(1) * 0.3
    delay = base + noise
    rush = torch.arange(14).remainder(5).eq(0).float().expand(n, 14)
    return torch.stack([delay, rush], -1)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--d", type=int, default=16)
    ap.add_argument("--warmup", type=int, default=4)
    ap.add_argument("--steps", type=int, default=60)
    a = ap.parse_args()
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(2)
    net = DelayForecaster(a.d)
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    sched = NoamLR(opt, a.d, a.warmup)
    for step in range(a.steps):
        x = days(16, gen)
        pred = net(x[:, :10], x[:, 9:13, 0])
        loss = nn.functional.mse_loss(pred, x[:, 10:, 0])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print("%d %.9g" % (step + 1, loss.item()))
    print(sum(p.sum().item() for p in net.parameters()))
