"""Handwriting synthesis after Graves: an LSTM predicts the next pen offset as a mixture of Gaussians."""
import copy
import io
import math
import torch
from torch import nn


def scribble(count, longest, seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        out = torch.full((count, longest, 3), float("nan"))
        for i in range(count):
            n = int(torch.randint(longest // 2, longest + 1, (1,), generator=g))
            s = torch.arange(n) * 0.35 + 6 * torch.rand(1, generator=g)
            out[i, :n, 0] = 0.10 + 0.12 * torch.cos(s)
            out[i, :n, 1] = 0.15 * torch.sin(2 * s) + 0.01 * torch.randn(n, generator=g)
            out[i, :n, 2] = (torch.arange(n) % 9 == 8).float()
        yield out


class Pen(nn.Module):
    def __init__(self, hidden=24, mixtures=3):
        super().__init__()
        self.m = mixtures
        self.rnn = nn.LSTM(3, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 5 * mixtures + 1)

    def nll(self, strokes):
        here, following = strokes[:, :-1], strokes[:, 1:]
        on_paper = following.isfinite().all(-1)
        following = torch.where(on_paper[..., None], following, 0.0)
        h, _ = self.rnn(torch.nan_to_num(here))
        pi, mx, my, sx, sy, up = self.head(h).split([self.m] * 5 + [1], dim=-1)
        sx, sy = sx.clamp(-4, 2), sy.clamp(-4, 2)
        zx = (following[..., 0:1] - mx) * torch.exp(-sx)
        zy = (following[..., 1:2] - my) * torch.exp(-sy)
        comp = pi.log_softmax(-1) - 0.5 * (zx ** 2 + zy ** 2) - sx - sy - math.log(2 * math.pi)
        lift = nn.functional.binary_cross_entropy_with_logits(up.squeeze(-1), following[..., 2], reduction="none")
        every = lift - comp.logsumexp(-1)
        return every[on_paper].mean()


def scribe(pen, ema):
    """Send in strokes, receive the loss; send in a string for something else."""
    opt = torch.optim.Adam(pen.parameters(), lr=1e-2)
    said = None
    while True:
        order = yield said
        if isinstance(order, str):
            if order == "average":
                buffer = io.BytesIO()
                torch.save(ema.state_dict(), buffer)
                buffer.seek(0)
                pen.load_state_dict(torch.load(buffer))
                opt = torch.optim.SGD(pen.parameters(), lr=0.02, momentum=0.5)
            elif order == "thaw":
                pen.rnn.requires_grad_(not pen.rnn.weight_hh_l0.requires_grad)
            said = order
            continue
        opt.zero_grad()
        loss = pen.nll(order)
        loss.backward()
        nn.utils.clip_grad_norm_(pen.parameters(), 2.0)
        opt.step()
        with torch.no_grad():
            for slow, fast in zip(ema.parameters(), pen.parameters()):
                slow.lerp_(fast, 0.2)
        said = loss.item()


torch.manual_seed(2013)
pen = Pen()
ema = copy.deepcopy(pen).requires_grad_(False)
clerk = scribe(pen, ema)
next(clerk)
paper = scribble(8, 40, seed=9)
for page in range(1, 37):
    if page == 25:
        clerk.send("average")
    if page in (12, 17):
        clerk.send("thaw")
    print(f"page {page}: {clerk.send(next(paper)):+.4f} nats per point")
clerk.close()
print("absolute weights, summed:", round(sum(p.abs().sum().item() for p in pen.parameters()), 4))
