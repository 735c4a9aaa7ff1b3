"""Nowcast: how many onsets of a week will have been reported in the end, from the
reports of the first days.  Weeks near the peak are drawn more often."""
import torch
import torch.nn as nn
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

EPOCHS, BATCH, LR = 4, 16, 0.03


def sir(weeks, beta, gamma=0.6, i0=2e-4):
    s, i, curve = 1 - i0, i0, []
    for _ in range(weeks):
        new = beta * s * i
        s, i = s - new, i + new - gamma * i
        curve.append(new)
    return torch.tensor(curve)


def surveillance():
    torch.manual_seed(1854)
    feats, final, peakness = [], [], []
    for beta in (1.1, 1.3, 1.5, 1.8):
        onsets = torch.poisson(20000 * sir(20, beta) + 4)
        delay = torch.tensor([0.25, 0.2, 0.15, 0.1])
        reports = torch.stack([torch.binomial(onsets, torch.full_like(onsets, p)) for p in delay], 1)
        feats.append(torch.log1p(reports))
        final.append(torch.log1p(onsets))
        peakness.append(onsets / onsets.max())
    x, y = torch.cat(feats), torch.cat(final)
    return TensorDataset((x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()), torch.cat(peakness) + 0.1


def run():
    data, importance = surveillance()
    draw = WeightedRandomSampler(importance.double(), num_samples=2 * len(data), replacement=True)
    loader = DataLoader(data, batch_size=BATCH, sampler=draw)
    net = nn.Sequential(nn.Linear(4, 24), nn.ReLU(), nn.Linear(24, 1))
    sgd = torch.optim.SGD(net.parameters(), lr=LR, momentum=0.9)
    total = EPOCHS * len(data) // BATCH
    decay = LambdaLR(sgd, lambda k: 1.0 - k / total)

    k = 0
    for epoch in range(EPOCHS):
        for x, y in loader:
            pred = net(x).squeeze(-1)
            loss = (pred - y).square().mean()
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            decay.step()
            k += 1
            print(f"[{epoch}:{k:02d}] squared error {loss.item():.5f}")
    return net


net = run()
print("norm of everything", f"{sum(p.norm().item() for p in net.parameters()):.4f}")
