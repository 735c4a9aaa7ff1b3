"""Slot attention on bento boxes (Lightning): group the occupied compartments of a box into dishes and reconstruct them."""
import logging
import warnings

import lightning as L
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
CELLS, FEATS = 16, 10


class BentoBoxes(Dataset):
    """Each box: 16 compartments with colour features, a mask of the occupied ones (photographs of a catering kitchen)."""

    def __init__(self, n=640, seed=2):
        gen = torch.Generator().manual_seed(seed)
        dishes = torch.randn(12, FEATS, generator=gen)
        pick = torch.randint(12, (n, 4), generator=gen)
        which = torch.randint(4, (n, CELLS), generator=gen)
        kind = pick.gather(1, which)
        self.x = dishes[kind] + 0.1 * torch.randn(n, CELLS, FEATS, generator=gen)
        fill = torch.randint(3, CELLS + 1, (n,), generator=gen)
        fill[371] = 0                                # a lid was left on
        self.occupied = torch.arange(CELLS)[None] < fill[:, None]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.occupied[i]


class SlotAttention(nn.Module):
    def __init__(self, width, slots, rounds=3):
        super().__init__()
        self.rounds = rounds
        self.mu = nn.Parameter(torch.randn(slots, width) * 0.5)
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gru = nn.GRUCell(width, width)
        self.norm_in, self.norm_slots = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, feats, occupied):
        b, _, d = feats.shape
        feats = self.norm_in(feats)
        k, v = self.k(feats), self.v(feats)
        slots = self.mu.expand(b, -1, -1)
        for _ in range(self.rounds):
            q = self.q(self.norm_slots(slots))
            attn = (q @ k.transpose(1, 2) * d ** -0.5).softmax(1)     # slots compete for each compartment
            attn = attn * occupied[:, None].float()
            weights = attn / attn.sum(-1, keepdim=True)
            seen = weights @ v
            slots = self.gru(seen.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots, attn


class BentoModel(L.LightningModule):
    def __init__(self, width=32, slots=4):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(FEATS, width), nn.ReLU(), nn.Linear(width, width))
        self.slots = SlotAttention(width, slots)
        self.decode = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, FEATS))

    def training_step(self, batch, _):
        x, occupied = batch
        slots, attn = self.slots(self.encode(x), occupied)
        recon = attn.transpose(1, 2) @ self.decode(slots)
        err = (recon - x).pow(2).mean(-1)
        loss = (err * occupied).sum() / occupied.sum()
        self.last = loss.detach()
        return loss

    def on_train_batch_end(self, *_):
        print(f"batch {self.global_step} loss {self.last.item():.6f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=3e-3)


if __name__ == "__main__":
    L.seed_everything(14, verbose=False)
    model = BentoModel()
    trainer = L.Trainer(max_steps=40, accelerator="cpu", logger=False, enable_checkpointing=False,
                        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(model, DataLoader(BentoBoxes(), batch_size=16, shuffle=False))
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)
