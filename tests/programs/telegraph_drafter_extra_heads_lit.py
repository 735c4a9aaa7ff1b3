"""Medusa-style heads for a small language model of telegrams: head k guesses the token k+1 places on. Lightning."""

import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
VOCAB, HEADS = 40, 4


class Telegrams(Dataset):
    """Sorted into buckets of one length each, so that no padding is needed; buckets come in a fixed shuffle."""

    def __init__(self, buckets=34, size=8, seed=17):
        g = torch.Generator().manual_seed(seed)
        lengths = torch.randint(6, 22, (buckets,), generator=g).tolist()
        lengths[15] = 4  # "ARRIVED SAFELY LOVE STOP"
        self.rows = []
        for n in lengths:
            start = torch.randint(0, VOCAB, (size, 1), generator=g)
            stride = torch.randint(1, 4, (size, 1), generator=g)
            self.rows.append((start + stride * torch.arange(n)) % VOCAB)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class ExtraHead(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.res, self.out = nn.Linear(d, d), nn.Linear(d, VOCAB)

    def forward(self, h):
        return self.out(h + F.silu(self.res(h)))


class Drafter(L.LightningModule):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.trunk = nn.GRU(d, d, num_layers=2, batch_first=True)
        self.heads = nn.ModuleList(ExtraHead(d) for _ in range(HEADS))
        self.decay = 0.8

    def forward(self, ids):
        h, _ = self.trunk(self.emb(ids))
        return [head(h) for head in self.heads]

    def training_step(self, ids, idx):
        total = 0.0
        for k, logits in enumerate(self(ids)):
            shift = k + 1
            guess, truth = logits[:, :-shift], ids[:, shift:]
            head_loss = F.cross_entropy(guess.reshape(-1, VOCAB), truth.reshape(-1))
            total = total + self.decay**k * head_loss
        print(f"batch {idx + 1} length {ids.shape[1]} loss {total.item():.6f}", flush=True)
        return total

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main():
    L.seed_everything(4, verbose=False)
    model = Drafter()
    loader = DataLoader(Telegrams(), batch_size=None, shuffle=False)
    trainer = L.Trainer(
        max_epochs=1,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
    )
    trainer.fit(model, loader)
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.5f}", flush=True)


if __name__ == "__main__":
    main()
