"""Which kite flew this? Contrastive embeddings of short kite tracks, with Lightning."""
import logging
import warnings

import lightning as L
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

KITES, FLIGHTS, LENGTH = 10, 24, 20


def fly(kite, g):
    """A track of (elevation, azimuth) whose swing depends on the kite."""
    t = torch.linspace(0, 6.28, LENGTH)
    speed = 0.6 + 0.25 * kite
    swing = 0.3 + 0.05 * kite + 0.05 * torch.randn(1, generator=g)
    phase = 6.28 * torch.rand(1, generator=g)
    track = torch.stack([0.8 + swing * torch.sin(speed * t + phase), swing * torch.cos(2 * speed * t + phase)], 1)
    return track + 0.04 * torch.randn(LENGTH, 2, generator=g)


def logbook(g):
    tracks, owner = [], []
    for kite in range(KITES):
        for _ in range(FLIGHTS):
            tracks.append(fly(kite, g))
            owner.append(kite)
    # the logbooks of both wardens are put together; they watched one flight of kite 7 from the same mast
    tracks.append(tracks[7 * FLIGHTS + 5].clone())
    owner.append(7)
    return torch.stack(tracks), torch.tensor(owner)


def pairs(owner, n, g):
    left = torch.randint(0, len(owner), (n,), generator=g)
    right = torch.empty_like(left)
    for i in range(n):
        same = torch.rand(1, generator=g).item() < 0.5
        pool = torch.nonzero((owner == owner[left[i]]) if same else (owner != owner[left[i]])).squeeze(1)
        pool = pool[pool != left[i]]
        right[i] = pool[torch.randint(0, len(pool), (1,), generator=g)]
    return left, right


class TrackEncoder(nn.Module):
    def __init__(self, width=32, out=8):
        super().__init__()
        self.conv = nn.Conv1d(2, width, 5, padding=2)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, out)

    def forward(self, x):
        h = torch.tanh(self.conv(x.transpose(1, 2))).transpose(1, 2)
        _, last = self.gru(h)
        return self.head(last[0])


class PairDistance(nn.Module):
    def forward(self, a, b):
        gap = a - b
        return gap.pow(2).sum(-1).sqrt()


class KiteModule(L.LightningModule):
    def __init__(self, margin=1.0):
        super().__init__()
        self.encoder = TrackEncoder()
        self.distance = PairDistance()
        self.margin = margin

    def training_step(self, batch, batch_idx):
        a, b, same = batch
        d = self.distance(self.encoder(a), self.encoder(b))
        pull = same * d.pow(2)
        push = (1 - same) * torch.relu(self.margin - d).pow(2)
        return (pull + push).mean()

    def on_train_batch_end(self, outputs, batch, batch_idx):
        print(f"batch {batch_idx + 1:02d} contrastive {outputs['loss'].item():.7f}", flush=True)

    def configure_optimizers(self):
        opt = torch.optim.AdamW(self.parameters(), lr=4e-3)
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=40)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": sched, "interval": "step"}}


if __name__ == "__main__":
    L.seed_everything(21, verbose=False)
    g = torch.Generator().manual_seed(GENERATOR_SEED := 34)
    tracks, owner = logbook(g)
    left, right = pairs(owner, 40 * 16, g)
    # the double entry is looked up by the wardens in the third week
    left[22 * 16 + 9], right[22 * 16 + 9] = 7 * FLIGHTS + 5, len(owner) - 1
    same = (owner[left] == owner[right]).float()
    loader = DataLoader(TensorDataset(tracks[left], tracks[right], same), batch_size=16)
    module = KiteModule()
    trainer = L.Trainer(max_epochs=1, accelerator="cpu", devices=1, gradient_clip_val=1.0, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, loader)
    print("sum of weights", f"{sum(p.detach().abs().sum().item() for p in module.parameters()):.5f}", flush=True)
