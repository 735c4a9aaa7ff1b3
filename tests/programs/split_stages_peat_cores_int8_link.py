"""Two halves of a network, as on two machines, with micro-batches and an 8-bit link between them."""
from collections import deque

import torch
from torch import nn

torch.manual_seed(44)
BANDS, MICRO, PER = 40, 4, 8


def pack(h):
    """What the link does to a block of activations: 8 bits and one scale a row."""
    top = h.abs().amax(dim=1, keepdim=True)
    code = torch.round(h * 127 / top).clamp(-127, 127)
    return code, top / 127


def unpack(code, scale):
    return (code * scale).requires_grad_()


class Stage:
    def __init__(self, net, lr):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9, nesterov=True)
        self.pending = deque()

    def flush(self):
        assert not self.pending
        self.opt.step()
        self.opt.zero_grad()


front = Stage(nn.Sequential(nn.Linear(BANDS, 64, bias=False), nn.ReLU(), nn.Linear(64, 32, bias=False), nn.ReLU()), 0.03)
back = Stage(nn.Sequential(nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2)), 0.03)


def core_scanner():
    """Infrared spectra along a peat core, with carbon and ash content of each slice."""
    g = torch.Generator().manual_seed(6)
    grid = torch.linspace(0, 1, BANDS)
    depth = 0
    while True:
        humid = torch.rand(1, generator=g)
        ash = torch.rand(1, generator=g)
        spectrum = humid * torch.exp(-((grid - 0.3) / 0.1) ** 2) + ash * torch.exp(-((grid - 0.7) / 0.15) ** 2)
        spectrum = (spectrum + 0.02 * torch.randn(BANDS, generator=g)).clamp(min=0)
        depth += 1
        if depth % 530 == 0:
            spectrum = torch.zeros(BANDS)      # between two sections of the core
        yield spectrum, torch.cat([humid, ash])


def take(stream, n):
    xs, ys = zip(*(next(stream) for _ in range(n)))
    return torch.stack(xs), torch.stack(ys)


def run_batch(x, y):
    total = 0.0
    incoming = deque()
    for xm, ym in zip(x.chunk(MICRO), y.chunk(MICRO)):
        h = front.net(xm)
        front.pending.append(h)
        incoming.append((*pack(h.detach()), ym))
    while incoming:
        code, scale, ym = incoming.popleft()
        arrived = unpack(code, scale)
        loss = nn.functional.smooth_l1_loss(back.net(arrived), ym) / MICRO
        loss.backward()
        total += loss.item()
        # the gradient travels back unpacked
        front.pending.popleft().backward(arrived.grad)
    back.flush()
    front.flush()
    return total


stream = core_scanner()
for step in range(1, 31):
    print(f"step {step:02d}: {run_batch(*take(stream, MICRO * PER)):.6f}")
weights = [p.detach() for s in (front, back) for p in s.net.parameters()]
print("sum of squares of both stages", sum((w * w).sum().item() for w in weights))
