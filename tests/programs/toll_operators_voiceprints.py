# Who is at the intercom of the toll gate? Small x-vector with attentive statistics pooling and AAM-softmax.
import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

FLOOR = -16.0  # log mel of digital silence
SPEAKERS = 12


class Intercom(Dataset):
    """Crops of 64 frames, 20 log-mel bands, mean normalised per crop (CMN)."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        timbre = torch.randn(SPEAKERS, 20, 1, generator=g)
        self.who = torch.randint(0, SPEAKERS, (n,), generator=g)
        wobble = torch.randn(n, 20, 64, generator=g)
        gate = torch.sin(torch.arange(64) / 5 + 6 * torch.rand(n, 1, 1, generator=g))
        self.mel = (-6 + timbre[self.who] * gate + 0.5 * wobble).clamp_min(FLOOR)
        self.mel[313] = FLOOR  # the line had dropped: the recorder wrote zeros

    def __len__(self):
        return len(self.who)

    def __getitem__(self, i):
        x = self.mel[i]
        return x - x.mean(-1, keepdim=True), self.who[i]


class AttentiveStats(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.score = nn.Sequential(nn.Conv1d(c, 16, 1), nn.Tanh(), nn.Conv1d(16, c, 1))

    def forward(self, h):
        w = F.softmax(self.score(h), dim=-1)
        mu = (w * h).sum(-1)
        var = (w * (h - mu[..., None]) ** 2).sum(-1)
        return torch.cat([mu, torch.sqrt(var)], dim=-1)


class XVector(nn.Module):
    def __init__(self, c=32, emb=24):
        super().__init__()
        # no bias before the pooling: CMN has taken the offset away already
        self.tdnn1 = nn.Conv1d(20, c, 5, padding=2, bias=False)
        self.tdnn2 = nn.Conv1d(c, c, 3, padding=2, dilation=2, bias=False)
        self.pool = AttentiveStats(c)
        self.fc = nn.Linear(2 * c, emb)

    def forward(self, x):
        h = F.leaky_relu(self.tdnn1(x), 0.1)
        h = F.leaky_relu(self.tdnn2(h), 0.1)
        return self.fc(self.pool(h))


class AAMSoftmax(nn.Module):
    def __init__(self, emb, n, m=0.2, s=20.0):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n, emb))
        nn.init.xavier_normal_(self.weight)
        self.m, self.s = m, s

    def forward(self, e, y):
        cos = F.linear(F.normalize(e), F.normalize(self.weight))
        sin = (1.0 - cos.pow(2)).clamp(1e-6, 1).sqrt()
        phi = cos * math.cos(self.m) - sin * math.sin(self.m)
        phi = torch.where(cos > math.cos(math.pi - self.m), phi, cos - math.sin(math.pi - self.m) * self.m)
        hot = F.one_hot(y, cos.shape[1]).bool()
        logits = self.s * torch.where(hot, phi, cos)
        return F.cross_entropy(logits, y), (cos.argmax(-1) == y).float().mean()


def train():
    torch.manual_seed(77)
    net, head = XVector(), AAMSoftmax(24, SPEAKERS)
    opt = torch.optim.SGD(
        [{"params": net.parameters(), "weight_decay": 1e-4}, {"params": head.parameters(), "weight_decay": 1e-3}],
        lr=0.03,
        momentum=0.9,
    )
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=[0.05, 0.05], total_steps=30)
    loader = DataLoader(Intercom(480, 3), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(9))
    for i, (x, y) in enumerate(loader, 1):
        loss, acc = head(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        print(f"iter {i:2d}  aam {loss.item():.6f}  acc {acc.item():.3f}")
    total = sum(p.detach().double().sum() for m in (net, head) for p in m.parameters())
    print(f"weights {total.item():.6f}")


if __name__ == "__main__":
    train()
