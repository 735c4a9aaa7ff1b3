"""Minimal RNN-transducer for taxi dispatch calls, with the alignment restriction
of Ar-RNN-T: a word may be emitted only near the frame at which the aligner of
the hybrid system saw it, which keeps the latency of the streaming model low.
"""
import math

import torch
from torch import nn

NEG = float("-inf")
VOCAB, BLANK = 20, 0


class Encoder(nn.Module):
    def __init__(self, feats=16, dim=32):
        super().__init__()
        self.subsample = nn.Conv1d(feats, dim, 3, stride=2, padding=1)
        self.rnn = nn.GRU(dim, dim, batch_first=True)

    def forward(self, x):
        h = torch.relu(self.subsample(x.transpose(1, 2))).transpose(1, 2)
        return self.rnn(h)[0]


class Predictor(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, dim)
        self.conv = nn.Conv1d(dim, dim, 2)

    def forward(self, y):
        y = torch.cat([torch.zeros(1, 2, dtype=torch.long), y[None]], 1)
        return torch.tanh(self.conv(self.embed(y).transpose(1, 2))).transpose(1, 2)


class Transducer(nn.Module):
    def __init__(self, dim=32, left=1, right=4):
        super().__init__()
        self.encoder, self.predictor = Encoder(dim=dim), Predictor(dim)
        self.joiner = nn.Linear(dim, VOCAB)
        self.left, self.right = left, right

    def forward(self, x, y, align):
        f, g = self.encoder(x[None])[0], self.predictor(y)[0]
        logp = self.joiner(torch.tanh(f[:, None] + g[None])).log_softmax(-1)
        return -self.lattice(logp, y, align) / len(y)

    def lattice(self, logp, y, align):
        T, U = logp.shape[0], len(y)
        blank = logp[:, :, BLANK]
        emit = logp[:, :-1].gather(2, y.expand(T, U)[..., None]).squeeze(-1)
        outside = logp.new_tensor(NEG)
        previous = [outside] * (U + 1)
        for t in range(T):
            row = []
            for u in range(U + 1):
                if u == 0:
                    row.append(blank[:t, 0].sum())
                    continue
                first, last = align[u - 1] - self.left, align[u - 1] + self.right
                if t < first:           # too early for word u, nothing can be here
                    row.append(outside)
                    continue
                stay = previous[u] + blank[t - 1, u]
                move = row[u - 1] + emit[t, u - 1] if t <= last else outside
                if t == max(first, 0):
                    row.append(move)
                else:
                    row.append(torch.logaddexp(stay, move))
            previous = row
        return previous[U] + blank[T - 1, U]


def corpus(n=36, seed=7):
    gen = torch.Generator().manual_seed(seed)
    proto = torch.randn(VOCAB, 16, generator=gen)
    for k in range(n):
        length = int(torch.randint(3, 6, (1,), generator=gen))
        words = torch.randint(1, VOCAB, (length,), generator=gen)
        rate = torch.randint(4, 8, (length,), generator=gen)
        frames = proto[words].repeat_interleave(rate, 0)
        x = torch.cat([torch.zeros(2, 16), frames, torch.zeros(8, 16)])
        x = x + 0.3 * torch.randn(x.shape, generator=gen)
        align = [(2 + int(e)) // 2 for e in rate.cumsum(0)]
        if k in (14, 27):               # two people talk at once
            align[1], align[2] = align[2], align[1]
        yield x, words, align


def lr_at(step, peak=4e-3, warm=6):
    return peak * min(step / warm, math.sqrt(warm / step))


if __name__ == "__main__":
    torch.manual_seed(0)
    net = Transducer()
    opt = torch.optim.Adam(net.parameters(), betas=(0.9, 0.98))
    for step, (audio, words, align) in enumerate(corpus(), 1):
        for group in opt.param_groups:
            group["lr"] = lr_at(step)
        loss = net(audio, words, align)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"{step:3d} frames {len(audio):3d} words {len(words):2d} loss {loss.item():.4f}", flush=True)
    print("final", sum(p.detach().norm() ** 2 for p in net.parameters()).sqrt().item())
