# Two historical maps of one county: which cell of the old sheet became which cell of the new one?
# Cells are matched by entropic transport; the people who live in a cell are its mass.
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Sheets(Dataset):
    def __init__(self, n=128, cells=14):
        g = torch.Generator().manual_seed(77)
        warp = torch.tensor([[0.9, 0.25], [-0.2, 1.1]])
        self.pairs = []
        for k in range(n):
            old = torch.rand(cells, 2, generator=g)
            people = torch.randint(20, 900, (cells,), generator=g).float()
            if k in (66, 67, 101):
                people[k % cells] = 0.0          # a drowned village
            new = old @ warp + 0.02 * torch.randn(cells, 2, generator=g)
            order = torch.randperm(cells, generator=g)
            later = people * (0.8 + 0.4 * torch.rand(cells, generator=g))
            self.pairs.append((old, people, new[order], later[order]))

    def __len__(self):
        return len(self.pairs)

    def __getitem__(self, k):
        return self.pairs[k]


class Sinkhorn(nn.Module):
    def __init__(self, eps=0.1, rounds=12):
        super().__init__()
        self.eps, self.rounds = eps, rounds

    def forward(self, cost, mass_a, mass_b):
        a = mass_a / mass_a.sum(1, keepdim=True)
        b = mass_b / mass_b.sum(1, keepdim=True)
        log_a, log_b = a.log(), b.log()
        f, g = torch.zeros_like(a), torch.zeros_like(b)
        for _ in range(self.rounds):
            f = self.eps * (log_a - torch.logsumexp((g[:, None, :] - cost) / self.eps, dim=2))
            g = self.eps * (log_b - torch.logsumexp((f[:, :, None] - cost) / self.eps, dim=1))
        return (f * a).sum(1) + (g * b).sum(1)


class MapMatcher(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.drawing = nn.Sequential(nn.Linear(2, 24), nn.SiLU(), nn.Linear(24, 3))
        self.survey = nn.Sequential(nn.Linear(2, 24), nn.SiLU(), nn.Linear(24, 3))
        self.transport = Sinkhorn()

    def training_step(self, batch, batch_idx):
        old, people, new, later = batch
        u, v = self.drawing(6 * old - 3), self.survey(6 * new - 3)
        cost = torch.cdist(u, v).pow(2)
        price = self.transport(cost, people, later).mean()
        spread = (u.var(1).sum(1) - 0.5).pow(2).mean() + (v.var(1).sum(1) - 0.5).pow(2).mean()
        loss = price + spread
        print(f"batch {batch_idx + 1:2d}  price {price.item():+.4f}  spread {spread.item():.4f}  loss {loss.item():+.4f}")
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


L.seed_everything(12, verbose=False)
matcher = MapMatcher()
trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                    enable_progress_bar=False, enable_model_summary=False)
trainer.fit(matcher, DataLoader(Sheets(), batch_size=4))
print("weights, sum of squares:", sum(p.detach().square().sum().item() for p in matcher.parameters()))
