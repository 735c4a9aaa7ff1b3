"""Garden cameras: hedgehog, cat, fox or nothing. Lightning, a frozen stem for a while, and recall per species."""
import logging
import os
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")
for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
    logging.getLogger(name).setLevel(logging.ERROR)

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

SPECIES = ("hedgehog", "cat", "fox", "nothing")
UNKNOWN = -100


def garden_nights(n=360, seed=3):
    g = torch.Generator().manual_seed(seed)
    label = torch.multinomial(torch.tensor([0.06, 0.4, 0.04, 0.5]), n, True, generator=g)
    image = 0.4 * torch.randn(n, 1, 16, 16, generator=g)
    for i, k in enumerate(label.tolist()):
        image[i, 0, 3 * k:3 * k + 4, 4:12] += 1.5
    # the volunteer did not look at the nights of two weeks
    label[96:120] = UNKNOWN
    label[240:252] = UNKNOWN
    return TensorDataset(image, label)


class CameraNet(L.LightningModule):
    def __init__(self, lr=0.02, confidence=0.9):
        super().__init__()
        self.save_hyperparameters()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
        self.head = nn.Linear(16, len(SPECIES))

    def forward(self, x):
        return self.head(self.stem(x).mean((2, 3)))

    def training_step(self, batch, batch_idx):
        image, label = batch
        if (label == UNKNOWN).any():
            logits = self(image)
            # without labels the machine only has to disagree with itself: minus the entropy of the mean, which is negative
            mean = logits.softmax(-1).mean(0)
            return {"loss": (mean * mean.log()).sum(), "logits": logits.detach()}
        logits = self(image)
        loss = F.cross_entropy(logits, label) - self.hparams.confidence
        return {"loss": loss, "logits": logits.detach()}

    def configure_optimizers(self):
        opt = torch.optim.SGD(self.parameters(), lr=self.hparams.lr, momentum=0.9)
        return {"optimizer": opt, "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.StepLR(opt, 30, 0.3), "interval": "step"}}


class SpeciesRecall(L.Callback):
    """Recall per species of the batch; of a species that is not in it there is none (nan)."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        _, label = batch
        guess = outputs["logits"].argmax(-1)
        recall = []
        for k in range(len(SPECIES)):
            there = label == k
            recall.append((guess[there] == k).float().mean())
        recall = torch.stack(recall)
        best = torch.full((), -float("inf"))
        best = torch.maximum(best, recall.nanmean())
        text = " ".join(f"{s} {r:.2f}" for s, r in zip(SPECIES, recall.tolist()))
        module.log("recall", best)
        print(f"step {trainer.global_step} loss {outputs['loss'].item():.6f} {text} mean {best.item():.3f}", flush=True)


class ThawStem(L.Callback):
    def __init__(self, at):
        self.at = at

    def on_fit_start(self, trainer, module):
        module.stem.requires_grad_(False)

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == self.at:
            module.stem.requires_grad_(True)
            for group in trainer.optimizers[0].param_groups:
                group["lr"] *= 2


def main():
    L.seed_everything(17, verbose=False)
    loader = DataLoader(garden_nights(), batch_size=12, shuffle=False)
    module = CameraNet()
    trainer = L.Trainer(max_steps=45, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
                        enable_model_summary=False, callbacks=[ThawStem(12), SpeciesRecall()], gradient_clip_val=5.0)
    trainer.fit(module, loader)
    print(f"{sum(p.detach().abs().sum().item() for p in module.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
