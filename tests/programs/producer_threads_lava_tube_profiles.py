import math
import queue
import threading

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

STEPS = 36
PRODUCERS = 2
LENGTH = 24


def survey(worker: int, out: queue.Queue) -> None:
    """Laser profiles along a lava tube: distance to the wall, and inf where the beam met nothing."""
    g = torch.Generator().manual_seed(900 + worker)
    for number in range(worker, STEPS, PRODUCERS):
        radius = 1.5 + torch.rand(16, 1, generator=g)
        angle = torch.linspace(0, 2 * math.pi, LENGTH)
        squash = 0.4 * torch.rand(16, 1, generator=g)
        wall = radius * (1 - squash * torch.cos(2 * angle)) + 0.02 * torch.randn(16, LENGTH, generator=g)
        lost = torch.rand(16, LENGTH, generator=g) < 0.1
        if number == 19:
            lost[3] = True
        out.put((number, wall.masked_fill(lost, math.inf), torch.cat([radius, squash], 1)))
    out.put(None)


def in_order(queues):
    live = list(queues)
    while live:
        for q in list(live):
            item = q.get(timeout=30)
            if item is None:
                live.remove(q)
            else:
                yield item


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, width)
        self.gain = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        return x + self.gain * torch.relu(self.inner(self.norm(x)))


class DeepProfileNet(nn.Module):
    def __init__(self, width=24, segments=4, per_segment=4):
        super().__init__()
        self.entry = nn.Linear(2 * LENGTH, width)
        self.segments = nn.ModuleList(
            nn.Sequential(*[Residual(width) for _ in range(per_segment)]) for _ in range(segments))
        self.leave = nn.Linear(width, 2)

    def forward(self, distance, leave_out):
        seen = torch.isfinite(distance)
        filled = torch.where(seen, distance, torch.zeros_like(distance))
        x = self.entry(torch.cat([filled, seen.float()], 1))
        for index, segment in enumerate(self.segments):
            if index == leave_out:
                continue
            x = checkpoint(segment, x, use_reentrant=False)
        return self.leave(x)


def main() -> None:
    torch.manual_seed(14)
    queues = [queue.Queue(maxsize=3) for _ in range(PRODUCERS)]
    threads = [threading.Thread(target=survey, args=(w, q), daemon=True) for w, q in enumerate(queues)]
    for thread in threads:
        thread.start()
    net = DeepProfileNet()
    optimizer = torch.optim.AdamW(net.parameters(), lr=4e-3)
    for number, distance, shape in in_order(queues):
        leave_out = number % 7
        loss = (net(distance, leave_out) - shape).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        untouched = sum(p.grad is None for p in net.parameters())
        optimizer.step()
        nothing = int(torch.isinf(distance).sum())
        print(f"profile set {number + 1}: loss {loss.item():.5f}, {nothing} beams without echo, {untouched} tensors idle")
    for thread in threads:
        thread.join()
    print("sum of |w|:", sum(p.detach().abs().sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
