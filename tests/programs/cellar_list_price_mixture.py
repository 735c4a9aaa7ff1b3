"""Price bands for the merchant's list: a mixture density head on what the label says (Lightning)."""
import logging
import math
import sys
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

REGIONS, GRAPES, STEPS, BATCH = 9, 14, 48, 32


class PriceList(Dataset):
    """The ledger in the order in which it was written; the autumn pages also sell by the case of twelve."""

    def __init__(self, seed=71):
        g = torch.Generator().manual_seed(seed)
        n = STEPS * BATCH
        self.region = torch.randint(0, REGIONS, (n,), generator=g)
        self.grape = torch.randint(0, GRAPES, (n,), generator=g)
        self.age = torch.rand(n, generator=g) * 20
        base = 12 + 1.5 * self.region + 0.4 * self.grape + 0.8 * self.age
        price = base * torch.exp(0.2 * torch.randn(n, generator=g))
        autumn = torch.arange(n) >= 21 * BATCH
        case = autumn & (torch.rand(n, generator=g) < 0.3)
        self.price = torch.where(case, price * 12, price)

    def __len__(self):
        return len(self.price)

    def __getitem__(self, i):
        return self.region[i], self.grape[i], self.age[i], self.price[i]


class MixtureHead(nn.Module):
    def __init__(self, width, parts):
        super().__init__()
        self.weight = nn.Linear(width, parts)
        self.centre = nn.Linear(width, parts)
        self.width = nn.Linear(width, parts)
        with torch.no_grad():
            self.centre.bias.copy_(torch.linspace(-1.5, 1.5, parts))

    def forward(self, h):
        sigma = nn.functional.softplus(self.width(h)) + 0.05
        return self.weight(h).softmax(-1), self.centre(h), sigma


class PriceModel(L.LightningModule):
    def __init__(self, width=32, parts=4):
        super().__init__()
        self.region = nn.Embedding(REGIONS, 8)
        self.grape = nn.Embedding(GRAPES, 8)
        self.trunk = nn.Sequential(nn.Linear(17, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.head = MixtureHead(width, parts)

    def forward(self, region, grape, age):
        x = torch.cat([self.region(region), self.grape(grape), age[:, None] / 20], -1)
        return self.head(self.trunk(x))

    def training_step(self, batch, index):
        region, grape, age, price = batch
        share, centre, sigma = self(region, grape, age)
        y = (price[:, None] - 28.0) / 10.0          # pounds a bottle, as on the spring list
        bell = torch.exp(-0.5 * ((y - centre) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
        likelihood = (share * bell).sum(-1)
        loss = -torch.log(likelihood).mean()
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=4e-3)


class Ledger(L.Callback):
    def on_train_batch_end(self, trainer, module, outputs, batch, index):
        print(f"page {index + 1:3d} nll {float(outputs['loss']):.6f}", flush=True)


def main():
    L.seed_everything(5, verbose=False)
    model = PriceModel()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, callbacks=[Ledger()])
    trainer.fit(model, DataLoader(PriceList(), batch_size=BATCH))
    print(f"sum of weights {sum(float(p.detach().abs().sum()) for p in model.parameters()):.5f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
