"""Co-teaching+ with accelerate: two classifiers of gear photographs (profiles of teeth) with noisy labels.

Each model is taught on those samples of a batch on which the two DISAGREE, and of them on those that its peer finds easy
(small loss), with a keep rate that goes down.
"""
from functools import partial

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CLASSES, TEETH, BATCH, STEPS, WARM = 4, 32, 12, 30, 13


def gears(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (n,), generator=g)
    t = torch.linspace(0, 6.283, TEETH)
    phase = 0.4 * torch.randn(n, 1, generator=g)
    x = torch.sin((y[:, None] + 2) * t + phase) + 0.25 * torch.randn(n, TEETH, generator=g)
    flip = torch.rand(n, generator=g) < 0.1
    noisy = torch.where(flip, torch.randint(0, CLASSES, (n,), generator=g), y)
    return TensorDataset(x, noisy, y)


class Profile(nn.Module):
    def __init__(self, width, kernel):
        super().__init__()
        self.conv = nn.Conv1d(1, width, kernel, padding=kernel // 2)
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width * 8, CLASSES)

    def forward(self, x):
        h = F.gelu(self.norm(self.conv(x[:, None]).transpose(1, 2))).transpose(1, 2)
        return self.fc(F.adaptive_avg_pool1d(h, 8).flatten(1))


def masked_mean(losses, keep):
    keep = keep.float()
    return (losses * keep).sum() / keep.sum()


def easy(losses, among, rate):
    """among the samples of the mask: the `rate` part with the smallest loss"""
    k = int(torch.ceil(among.sum() * rate))
    order = losses.detach().masked_fill(~among, float("inf")).argsort()
    keep = torch.zeros_like(among)
    keep[order[:k]] = True
    return keep


def main():
    set_seed(1704)
    acc = Accelerator(cpu=True)
    loader = DataLoader(gears(BATCH * STEPS, 1), batch_size=BATCH, shuffle=False)
    build = partial(Profile, width=16)
    left, right = build(kernel=5), build(kernel=9)
    opt_l = torch.optim.Adam(left.parameters(), lr=4e-3)
    opt_r = torch.optim.Adam(right.parameters(), lr=4e-3)
    left, right, opt_l, opt_r, loader = acc.prepare(left, right, opt_l, opt_r, loader)
    for step, (x, noisy, clean) in enumerate(loader, 1):
        zl, zr = left(x), right(x)
        ll = F.cross_entropy(zl, noisy, reduction="none")
        lr = F.cross_entropy(zr, noisy, reduction="none")
        if step <= WARM:
            among = torch.ones_like(noisy, dtype=torch.bool)
        else:
            among = zl.argmax(1) != zr.argmax(1)
        rate = 1.0 - 0.2 * min(step / 20, 1.0)
        for_left, for_right = easy(lr, among, rate), easy(ll, among, rate)
        loss_l, loss_r = masked_mean(ll, for_left), masked_mean(lr, for_right)
        acc.backward(loss_l)
        acc.backward(loss_r)
        opt_l.step()
        opt_r.step()
        opt_l.zero_grad()
        opt_r.zero_grad()
        acc.print(f"{step:3d} left {loss_l.item():.6f} right {loss_r.item():.6f} disagree {int(among.sum()):2d}", flush=True)
    total = sum(p.detach().abs().sum().item() for m in (left, right) for p in m.parameters())
    acc.print(f"weights {total:.6f}", flush=True)


if __name__ == "__main__":
    main()
