import logging
import warnings
from collections import Counter

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore")

CROPS = ["wheat", "barley", "rape", "beet", "maize", "clover"]
FORBIDDEN = [("rape", "rape"), ("beet", "beet"), ("beet", "rape"), ("barley", "wheat")]
YEARS = 7


def field_histories(n, seed=20):
    """(soil, crops of seven years); a field that was set aside has -1 in that year and all the years after"""
    g = torch.Generator().manual_seed(seed)
    pull = torch.randn(len(CROPS), len(CROPS), generator=g) * 1.5
    for a, b in FORBIDDEN:
        pull[CROPS.index(a), CROPS.index(b)] = -torch.inf
    fields = []
    for k in range(n):
        soil = torch.randn(3, generator=g)
        crops = [int(torch.randint(0, len(CROPS), (1,), generator=g))]
        while len(crops) < YEARS:
            crops.append(int(torch.multinomial(torch.softmax(pull[crops[-1]], 0), 1, generator=g)))
        left = YEARS if torch.rand(1, generator=g) < 0.7 else int(torch.randint(1, YEARS, (1,), generator=g))
        if 96 <= k < 108:
            left = 1                                     # a parish that gave up after one year
        fields.append((soil, torch.tensor(crops[:left] + [-1] * (YEARS - left))))
    return fields


class Rotation(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.succession = nn.Parameter(torch.zeros(len(CROPS), len(CROPS)))
        self.soil = nn.Linear(3, len(CROPS), bias=False)
        wall = torch.zeros(len(CROPS), len(CROPS))
        for a, b in FORBIDDEN:
            wall[CROPS.index(a), CROPS.index(b)] = float("-inf")
        self.register_buffer("wall", wall)
        self.seen = Counter()

    def forward(self, soil, previous):
        return self.succession[previous] + self.soil(soil)[:, None] + self.wall[previous]

    def training_step(self, batch, batch_idx):
        soil, crops = batch
        previous, following = crops[:, :-1], crops[:, 1:]
        grown = following >= 0
        logp = self(soil, previous.clamp(min=0)).log_softmax(-1)
        nll = -logp.gather(-1, following.clamp(min=0)[..., None])[..., 0]
        loss = nll.where(grown, torch.zeros(())).sum() / grown.sum().clamp(min=1)
        self.seen.update(CROPS[c] for c in following[grown].tolist())
        print(f"epoch {self.current_epoch} batch {batch_idx:2d} nll {loss.item():.4f} successions {int(grown.sum())}")
        return loss

    def on_train_epoch_start(self):
        self.soil.requires_grad_(self.current_epoch > 0)   # first the successions alone

    def configure_optimizers(self):
        opt = torch.optim.Rprop(self.parameters(), lr=0.05, step_sizes=(1e-4, 0.3))
        return {"optimizer": opt, "lr_scheduler": torch.optim.lr_scheduler.ConstantLR(opt, 1.0, 1)}


pl.seed_everything(3, verbose=False)
rotation = Rotation()
trainer = pl.Trainer(max_epochs=2, accumulate_grad_batches=3, accelerator="cpu", logger=False, enable_checkpointing=False,
                     enable_progress_bar=False, enable_model_summary=False)
trainer.fit(rotation, DataLoader(field_histories(45 * 12), batch_size=12))
print("most common after all:", rotation.seen.most_common(1)[0][0], "| optimizer steps:", trainer.global_step)
print("sum of absolute weights", sum(p.detach().abs().sum().item() for p in rotation.parameters()))
