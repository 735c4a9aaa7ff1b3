# handwriting from a farrier's ledger: mixture density over pen offsets, weights kept as a dict of tensors
import math
import torch
import torch.nn as nn
from torch.func import functional_call

torch.manual_seed(90)
MIX, HIDDEN, LENGTH, BATCH, STEPS = 5, 40, 30, 10, 36
LINE_BREAKS = {(15, 4): 22, (27, 7): 17}       # (batch, row) -> position at which the writer begins a new line


class PenModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, HIDDEN, batch_first=True)
        self.head = nn.Linear(HIDDEN, 6 * MIX + 1)

    def forward(self, strokes):
        h, _ = self.rnn(strokes)
        out = self.head(h)
        up, rest = out[..., 0], out[..., 1:]
        pi, mx, my, sx, sy, rho = rest.chunk(6, -1)
        return up, pi.softmax(-1), mx, my, sx.exp(), sy.exp(), 0.95 * torch.tanh(rho)


def writing(step, g):
    """offsets (dx, dy) in x-heights, and pen lifts"""
    t = torch.arange(LENGTH + 1).float()
    slant = 0.3 + 0.2 * torch.rand(BATCH, 1, generator=g)
    speed = 0.7 + 0.3 * torch.rand(BATCH, 1, generator=g)
    phase = 6.28 * torch.rand(BATCH, 1, generator=g)
    dy = torch.cos(speed * t + phase)
    dx = 0.5 + slant * dy + 0.1 * torch.randn(BATCH, LENGTH + 1, generator=g)
    dy = dy + 0.1 * torch.randn(BATCH, LENGTH + 1, generator=g)
    lift = (torch.sin(0.25 * t + phase) > 0.95).float()
    page = torch.stack([dx, dy, lift], -1)
    for (at, row), position in LINE_BREAKS.items():
        if at == step:
            page[row, position] = torch.tensor([-46.0, -3.0, 1.0])
    return page


def bivariate(x, y, mx, my, sx, sy, rho):
    u, v = (x - mx) / sx, (y - my) / sy
    q = 1 - rho ** 2
    z = u ** 2 + v ** 2 - 2 * rho * u * v
    return torch.exp(-z / (2 * q)) / (2 * math.pi * sx * sy * torch.sqrt(q))


def negative_log_likelihood(model, params, page):
    seen, target = page[:, :-1], page[:, 1:]
    seen = torch.stack([seen[..., 0].clamp(-4, 4), seen[..., 1].clamp(-4, 4), seen[..., 2]], -1)
    up, pi, mx, my, sx, sy, rho = functional_call(model, params, (seen,))
    density = (pi * bivariate(target[..., :1], target[..., 1:2], mx, my, sx, sy, rho)).sum(-1)
    points = -torch.log(density)
    lifts = nn.functional.binary_cross_entropy_with_logits(up, target[..., 2])
    return points.mean() + lifts, density.detach()


def main():
    model = PenModel()
    params = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    optimizer = torch.optim.RMSprop(params.values(), lr=2e-3, momentum=0.5)
    g = torch.Generator().manual_seed(91)
    for step in range(1, STEPS + 1):
        page = writing(step, g)
        loss, density = negative_log_likelihood(model, params, page)
        optimizer.zero_grad()
        loss.backward()
        for p in params.values():
            p.grad.clamp_(-10, 10)
        print("step", step, "nll %.6f" % loss.item(), "median density %.5f" % density.median().item(), flush=True)
        optimizer.step()
    print("%.6f" % sum(p.detach().abs().sum().item() for p in params.values()), flush=True)


if __name__ == "__main__":
    main()
