"""Heading of a weather vane from four strain gauges, loss is the angle in radians.

The feed is resilient: a reading that raises is replayed, closures may fail, the loop goes on.
"""
import math

import torch
from torch import nn


class GaugeDropout(Exception):
    pass


class Vane(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(4, 2)
        with torch.no_grad():
            # the gauges sit at 0, 90, 180 and 270 degrees, so this is the textbook solution, slightly off
            self.mix.weight.copy_(torch.tensor([[0.45, 0.1, -0.5, 0.0], [0.0, 0.5, 0.1, -0.45]]))
            self.mix.bias.fill_(0.0)

    def forward(self, gauges):
        return self.mix(gauges)


def readings(n_steps, batch=6):
    g = torch.Generator().manual_seed(270)
    for step in range(1, n_steps + 1):
        theta = torch.rand(batch, generator=g) * 2 * math.pi
        wind = torch.stack([theta.cos(), theta.sin()], 1)
        gauges = torch.cat([wind, -wind], 1) * (2 + torch.rand(batch, 1, generator=g))
        gauges = gauges + 0.05 * torch.randn(gauges.shape, generator=g)
        if step == 17:
            # bench calibration: the vane is clamped and the reference is the instrument itself
            yield step, gauges, None
        else:
            yield step, gauges, wind


def angle(pred, ref):
    cos = (pred * ref).sum(1) / (pred.norm(dim=1) * ref.norm(dim=1))
    cos = cos.clamp(-1.0, 1.0)
    return torch.acos(cos)


class Replay:
    """suppresses a dropout once and asks for the same reading again"""

    def __init__(self):
        self.count = 0

    def __enter__(self):
        self.ok = False
        return self

    def __exit__(self, kind, value, tb):
        if kind is GaugeDropout:
            self.count += 1
            return True
        self.ok = kind is None
        return False


def main():
    torch.manual_seed(4)
    vane = Vane()
    opt = torch.optim.SGD(vane.parameters(), lr=0.02, momentum=0.5)
    replay = Replay()
    flaky = {5, 12, 23}
    for step, gauges, ref in readings(30):
        for attempt in range(2):
            with replay:
                if step in flaky and attempt == 0:
                    raise GaugeDropout(step)
                pred = vane(gauges)
                target = pred.detach() if ref is None else ref
                err = angle(pred, target)
                loss = err.mean()
            if replay.ok:
                break
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step {step:2d} angle {loss.item():.6f} rad, replays {replay.count}")
    print(f"weights {sum(p.double().sum().item() for p in vane.parameters()):.7f}")


if __name__ == "__main__":
    main()
