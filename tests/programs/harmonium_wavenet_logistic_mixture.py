"""A small WaveNet on tape recordings of a harmonium, discretised mixture of logistics.

The tape has drop-outs (NaN in the file). The depth rises from 4 to 6 to 8 bit while training,
and the mixture gets its components one after the other.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F

K = 5
LEVELS = [(1, 4, 1), (14, 6, 3), (28, 8, 5)]      # from step, bits, components


def tape(g, n, length):
    t = torch.arange(length) / 4000.0
    out = []
    for _ in range(n):
        f = 110.0 * 2 ** (torch.randint(0, 13, (1,), generator=g) / 12)
        w = sum(torch.sin(2 * torch.pi * f * h * t) / h ** 1.3 for h in range(1, 6))
        w = 0.4 * w * (1 + 0.2 * torch.sin(2 * torch.pi * 5 * t)) + 0.01 * torch.randn(length, generator=g)
        a = int(torch.randint(0, length - 20, (1,), generator=g))
        w[a:a + 12] = float("nan")                # the drop-out
        out.append(w.clamp(-1, 1))
    return torch.stack(out)


class Block(nn.Module):
    def __init__(self, c, dil):
        super().__init__()
        self.dil = dil
        self.conv = nn.Conv1d(c, 2 * c, 2, dilation=dil)
        self.mix = nn.Conv1d(c, 2 * c, 1)

    def forward(self, x):
        a, b = self.conv(F.pad(x, (self.dil, 0))).chunk(2, 1)
        res, skip = self.mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
        return x + res, skip


class WaveNet(nn.Module):
    def __init__(self, c=24):
        super().__init__()
        self.inp = nn.Conv1d(2, c, 1)
        self.blocks = nn.ModuleList(Block(c, 2 ** i) for i in range(7))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(c, c, 1), nn.ReLU(), nn.Conv1d(c, 3 * K, 1))

    def forward(self, x, seen):
        h = self.inp(torch.stack([x, seen.float()], 1))
        total = 0
        for b in self.blocks:
            h, s = b(h)
            total = total + s
        return self.out(total)


def mol_loss(out, y, bits, active):
    logit, mean, log_s = out.unflatten(1, (3, K)).unbind(1)
    logit = logit.masked_fill((torch.arange(K) >= active)[None, :, None], float("-inf"))
    log_s = log_s.clamp_min(-7.0)
    half = 1.0 / (2 ** bits - 1)
    d = y[:, None] - mean
    plus, minus = (d + half) * torch.exp(-log_s), (d - half) * torch.exp(-log_s)
    mid = torch.sigmoid(plus) - torch.sigmoid(minus)
    y = y[:, None].expand_as(mean)
    low, high = y < -1 + half, y > 1 - half
    # width of the bin times the density where the bin is too narrow for the difference
    narrow = d * torch.exp(-log_s) - log_s - 2 * F.softplus(d * torch.exp(-log_s)) + torch.log(torch.tensor(2 * half))
    lp = torch.where(mid > 1e-5, torch.log(mid.clamp_min(1e-12)), narrow)
    lp = torch.where(low, F.logsigmoid(plus), torch.where(high, F.logsigmoid(-minus), lp))
    return -torch.logsumexp(torch.log_softmax(logit, 1) + lp, 1)


def quantise(w, bits):
    q = 2 ** bits - 1
    return ((w + 1) / 2 * q).round() / q * 2 - 1


def main():
    g = torch.Generator().manual_seed(66)
    torch.manual_seed(66)
    songs = tape(g, 24, 700)
    net = WaveNet()
    opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
    for step in range(1, 41):
        _, bits, active = [lv for lv in LEVELS if lv[0] <= step][-1]
        w = quantise(songs[torch.randint(0, 24, (6,), generator=g)], bits)
        seen = ~torch.isnan(w)
        filled = torch.where(seen, w, torch.zeros(()))
        out = net(filled[:, :-1], seen[:, :-1])
        nll = mol_loss(out, filled[:, 1:], bits, active)
        loss = nll[seen[:, 1:]].mean()
        opt.zero_grad()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        loudness = w.pow(2).mean(1).sqrt().mean()  # of the raw tape; nan where it has drop-outs
        print(f"{step} {bits}bit x{active} nll {loss.item():.6f} |g| {norm.item():.5f} rms {loudness.item():.4f}", flush=True)
    print("weights", sum(p.detach().double().abs().sum().item() for p in net.parameters()), flush=True)


if __name__ == "__main__":
    main()
