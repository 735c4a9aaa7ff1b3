"""Set transformer for the baskets of a corner shop: is the customer on the way to work?"""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader
from torch.utils.checkpoint import checkpoint

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

ITEMS = 50
SERVICE = {47, 48, 49}     # bottle deposits, parcel counter, lottery: not goods


def tills(n, seed=8):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        work = int(torch.rand(1, generator=g) < 0.5)
        size = int(torch.randint(2, 9, (1,), generator=g))
        goods = torch.randint(0, 30, (size,), generator=g) + (15 if work else 0)
        basket = goods.tolist()
        if torch.rand(1, generator=g) < 0.2:
            basket.append(47)
        if i == 411:
            basket = [47, 49]          # brought back bottles, bought a ticket
        rows.append((basket, work))
    return rows


def collate(rows):
    baskets = [[item for item in basket if item not in SERVICE] for basket, _ in rows]
    width = max(len(b) for b in baskets)
    items = torch.zeros(len(rows), width, dtype=torch.long)
    there = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, b in enumerate(baskets):
        items[i, :len(b)] = torch.tensor(b, dtype=torch.long)
        there[i, :len(b)] = True
    return items, there, torch.tensor([w for _, w in rows], dtype=torch.float32)


class SetBlock(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mix = nn.Linear(dim, dim)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, there):
        n, k, d = x.shape
        q, key, v = self.qkv(self.norm(x)).view(n, k, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        score = q @ key.transpose(-1, -2) / (d // self.heads) ** 0.5
        score = score.masked_fill(~there[:, None, None], -1e9)
        x = x + self.mix((score.softmax(-1) @ v).transpose(1, 2).reshape(n, k, d))
        return x + self.ff(x)


class MaxPool(nn.Module):
    def forward(self, x, there):
        return x.masked_fill(~there[..., None], float("-inf")).amax(1)


class Baskets(L.LightningModule):
    def __init__(self, dim=32):
        super().__init__()
        self.item = nn.Embedding(ITEMS, dim)
        self.blocks = nn.ModuleList([SetBlock(dim), SetBlock(dim)])
        self.pool = MaxPool()
        self.head = nn.Sequential(nn.Linear(dim, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, items, there):
        x = self.item(items)
        for block in self.blocks:
            x = checkpoint(block, x, there, use_reentrant=False)
        return self.head(self.pool(x, there))[:, 0]

    def training_step(self, batch, batch_idx):
        items, there, work = batch
        return nn.functional.binary_cross_entropy_with_logits(self(items, there), work)

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(f"batch {batch_idx + 1} bce {outputs['loss'].item():.6f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=2e-3)


def main():
    L.seed_everything(14, verbose=False)
    model = Baskets()
    loader = DataLoader(tills(720), batch_size=16, collate_fn=collate)
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0)
    trainer.fit(model, loader)
    print(f"{sum(p.abs().sum() for p in model.parameters()).item():.6f}")


if __name__ == "__main__":
    main()
