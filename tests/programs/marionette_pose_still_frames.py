"""Marionette joint poses from string tensions; unit quaternions, geodesic loss plus a smoothness prior in time."""
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Clip(NamedTuple):
    tension: Tensor     # frames x strings
    quat: Tensor        # frames x 4, measured by the mocap
    label: str


def qnormalise(q: Tensor) -> Tensor:
    return q / q.norm(dim=-1, keepdim=True).clamp_min(1e-8)


def geodesic(a: Tensor, b: Tensor) -> Tensor:
    """angle between two rotations, q and -q being the same one"""
    dot = (a * b).sum(-1).abs().clamp(max=1.0)      # rounding may give 1.0000001
    return 2.0 * torch.acos(dot)


class Puppeteer(nn.Module):
    def __init__(self, strings=7, hidden=32):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(strings, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.rot = nn.Linear(hidden, 4)
        with torch.no_grad():
            self.rot.bias.copy_(torch.tensor([1.0, 0, 0, 0]))

    def forward(self, tension):
        return qnormalise(self.rot(self.net(tension)))


def library(n_clips: int) -> list:
    g = torch.Generator().manual_seed(64)
    mix = torch.randn(7, 3, generator=g) * 0.4
    out = []
    for c in range(n_clips):
        base = torch.randn(1, 7, generator=g)
        drift = torch.randn(24, 7, generator=g).cumsum(0) * 0.12
        tension = base + drift
        label = "dance"
        if c == 21:
            # the bows at the end: the figure hangs still four times, the logger repeats its reading
            for hold in range(4, 24, 5):
                tension[hold:hold + 5] = tension[hold].clone()
            label = "bow"
        half = (tension @ mix).tanh() * 0.5
        quat = qnormalise(torch.cat([torch.ones(24, 1), half], 1))
        quat = qnormalise(quat + 0.01 * torch.randn(24, 4, generator=g))
        out.append(Clip(tension, quat, label))
    return out


class Rehearsal:
    def __init__(self, model, lr=5e-3, smooth=0.1):
        self.model, self.smooth = model, smooth
        self.opt = torch.optim.RMSprop(model.parameters(), lr=lr)

    def run(self, clip: Clip):
        q = self.model(clip.tension)
        data = geodesic(q, clip.quat).mean()
        # penalise the change from frame to frame
        jerk = geodesic(q[1:], q[:-1]).mean()
        loss = data + self.smooth * jerk
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return data.item(), jerk.item(), loss.item()


def main():
    torch.manual_seed(17)
    torch.set_num_threads(1)
    stage = Rehearsal(Puppeteer())
    for i, clip in enumerate(library(36), start=1):
        data, jerk, loss = stage.run(clip)
        print(f"clip {i:2d} {clip.label:5s} angle {data:.5f} smooth {jerk:.5f} loss {loss:.6f}")
    total = sum(p.detach().double().sum().item() for p in stage.model.parameters())
    print(f"done, checksum {total:.6f}")


if __name__ == "__main__":
    main()
