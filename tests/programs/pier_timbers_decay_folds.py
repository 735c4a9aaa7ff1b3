"""Decay depth of pier timbers (mm) from drill resistance: leave-one-pier-out, one model per pier.

The mean and log-variance are predicted; the Gaussian likelihood is a density, so the loss may be
below zero.  Some piers were rebuilt and have no rotten timber: their AUC does not exist (nan), and
R2 of a pier with one depth only does not either."""
import numpy as np
import torch
from torch import nn

PIERS = ["Aber", "Birnbeck", "Cleve", "Deal", "Eastney", "Felix"]
EPOCHS = 8


def timbers(seed=19):
    rng = np.random.default_rng(seed)
    data = {}
    for pier in PIERS:
        n = int(rng.integers(30, 60))
        drill = rng.normal(size=(n, 6)).astype(np.float32)
        depth = 0.25 + 0.04 * drill[:, 0] - 0.03 * drill[:, 1] * drill[:, 2] + 0.01 * rng.normal(size=n)
        depth = depth.astype(np.float32)
        if pier == "Cleve":
            depth[:] = 0.0                  # rebuilt in concrete sleeves: no decay anywhere
        if pier == "Eastney":
            depth = np.minimum(depth, 0.2)
        data[pier] = (torch.from_numpy(drill), torch.from_numpy(depth))
    return data


class DepthNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 20), nn.Tanh())
        self.mu = nn.Linear(20, 1)
        self.log_var = nn.Linear(20, 1)
        nn.init.zeros_(self.log_var.weight)
        nn.init.constant_(self.log_var.bias, -2.0)

    def forward(self, x):
        h = self.trunk(x)
        return self.mu(h).squeeze(-1), self.log_var(h).squeeze(-1).clamp(-9, 3)


def nll(mu, log_var, y):
    return 0.5 * (log_var + (y - mu).square() * torch.exp(-log_var)).mean()


def auc(score, truth):
    pos, neg = score[truth], score[~truth]
    return (pos[:, None] > neg[None, :]).float().mean().item()      # mean of nothing: nan


def r2(mu, y):
    return (1.0 - (y - mu).square().sum() / (y - y.mean()).square().sum()).item()


def fit(x, y, tag):
    torch.manual_seed(100 + len(tag))
    model = DepthNet()
    opt = torch.optim.Adam(model.parameters(), lr=0.02)
    sched = torch.optim.lr_scheduler.LinearLR(opt, 1.0, 0.2, total_iters=EPOCHS)
    for epoch in range(EPOCHS):
        opt.zero_grad()
        loss = nll(*model(x), y)
        loss.backward()
        opt.step()
        sched.step()
        print(f"{tag:9s} epoch {epoch} loss {loss.item():+.6f}", flush=True)
    return model


if __name__ == "__main__":
    data = timbers()
    table = []
    for held_out in PIERS:
        xs = torch.cat([data[p][0] for p in PIERS if p != held_out])
        ys = torch.cat([data[p][1] for p in PIERS if p != held_out])
        net = fit(xs, ys, held_out)
        with torch.no_grad():
            x, y = data[held_out]
            mu, _ = net(x)
            row = (auc(mu, y > 0.27), r2(mu, y), (mu - y).abs().mean().item())
        table.append(row)
        print(f"== {held_out}: auc {row[0]:.4f} r2 {row[1]:.4f} mae {row[2]:.4f}", flush=True)
    table = np.array(table)
    print("mean over piers", " ".join(f"{v:.4f}" for v in table.mean(0)))
    print("mean where defined", " ".join(f"{v:.4f}" for v in np.nanmean(np.where(np.isinf(table), np.nan, table), 0)))
