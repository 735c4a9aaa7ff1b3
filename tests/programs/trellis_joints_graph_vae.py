"""Variational graph autoencoder of wooden trellises: joints are nodes, slats are edges.  Lightning."""

import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Trellises(Dataset):
    """Random geometric graphs; now and then a small frame in which each joint is braced with each other one."""

    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n):
            k = int(torch.randint(8, 14, (1,), generator=g))
            radius = 0.42
            if i == 22:
                k, radius = 4, 2.0
            xy = torch.rand(k, 2, generator=g)
            adj = (torch.cdist(xy, xy) < radius) & ~torch.eye(k, dtype=torch.bool)
            nearest = (torch.cdist(xy, xy) + 9.0 * torch.eye(k)).argmin(dim=1)
            adj[torch.arange(k), nearest] = True
            adj = adj | adj.T
            self.items.append((xy, adj))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class GraphConv(nn.Module):
    def __init__(self, a, b):
        super().__init__()
        self.lin = nn.Linear(a, b)

    def forward(self, x, adj):
        a = adj.float() + torch.eye(len(adj))
        d = a.sum(dim=1).rsqrt()
        return (d[:, None] * a * d[None, :]) @ self.lin(x)


class TrellisVAE(L.LightningModule):
    def __init__(self, hidden=24, latent=8, beta=0.05):
        super().__init__()
        self.enc = GraphConv(4, hidden)
        self.mu = GraphConv(hidden, latent)
        self.logvar = GraphConv(hidden, latent)
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.bias = nn.Parameter(torch.tensor(0.0))
        self.beta = beta
        self.dice = torch.Generator().manual_seed(321)

    def features(self, xy, adj):
        return torch.cat([xy, xy.square().sum(1, keepdim=True), adj.float().sum(1, keepdim=True) / 8.0], dim=1)

    def encode(self, xy, adj):
        h = torch.relu(self.enc(self.features(xy, adj), adj))
        return self.mu(h, adj), self.logvar(h, adj).clamp(-6, 4)

    def sample_pairs(self, adj):
        upper = torch.triu(torch.ones_like(adj), diagonal=1)
        edges = (adj & upper).nonzero()
        absent = (~adj & upper).float().flatten()
        # as many absent slats as there are slats
        picked = torch.multinomial(absent, len(edges), replacement=True, generator=self.dice)
        k = len(adj)
        return edges, torch.stack([picked // k, picked % k], dim=1)

    def score(self, z, pairs):
        return self.scale * (z[pairs[:, 0]] * z[pairs[:, 1]]).sum(dim=1) + self.bias

    def training_step(self, batch, batch_idx):
        xy, adj = batch
        mu, logvar = self.encode(xy, adj)
        z = mu + torch.exp(0.5 * logvar) * torch.randn(mu.shape, generator=self.dice)
        edges, others = self.sample_pairs(adj)
        recon = F.softplus(-self.score(z, edges)).mean() + F.softplus(self.score(z, others)).mean()
        kl = 0.5 * (mu.square() + logvar.exp() - 1.0 - logvar).sum(dim=1).mean()
        loss = recon + self.beta * kl
        print(f"trellis {batch_idx + 1} joints {len(xy)} recon {recon.item():.7f} kl {kl.item():.6f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def main():
    L.seed_everything(17, verbose=False)
    loader = DataLoader(Trellises(40, seed=50), batch_size=None, shuffle=False)
    model = TrellisVAE()
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
