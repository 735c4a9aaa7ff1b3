"""Which typewriter typed this letter: a student on few labels learns from the moving average of itself.

Lightning, manual hooks. The teacher is silent for the first steps, then speaks with a falling temperature.
"""

import copy
import logging
import math
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

MACHINES, STEPS, SILENT = 7, 50, 20


def letters(n=768):
    gen = torch.Generator().manual_seed(1938)
    proto = torch.randn(MACHINES, 1, 12, 12, generator=gen)
    which = torch.randint(0, MACHINES, (n,), generator=gen)
    ink = 0.5 + torch.rand(n, 1, 1, 1, generator=gen)
    x = ink * proto[which] + 0.6 * torch.randn(n, 1, 12, 12, generator=gen)
    known = torch.rand(n, generator=gen) < 0.5
    return x, torch.where(known, which, torch.full_like(which, -100))


class Reader(nn.Sequential):
    def __init__(self):
        super().__init__(
            nn.Conv2d(1, 12, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(12, 24, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(96, MACHINES),
        )


class SelfDistilled(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.student = Reader()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.say = None

    def temperature(self, step):
        return 1.0 if step < SILENT else max(0.01, 0.5 * 0.8 ** (step - SILENT))

    def training_step(self, batch, index):
        x, y = batch
        step = self.global_step
        logits = self.student(x + 0.1 * torch.randn_like(x))
        supervised = F.cross_entropy(logits, y, reduction="none", ignore_index=-100)
        supervised = supervised.sum() / (y >= 0).sum().clamp(min=1)
        least, gap = float("nan"), torch.zeros(())
        if step >= SILENT:
            with torch.no_grad():
                target = torch.softmax(self.teacher(x) / self.temperature(step), 1)
            # xlogy(0, 0) is 0: the sharpened targets hold exact zeros
            gap = (torch.xlogy(target, target) - target * F.log_softmax(logits, 1)).sum(1).mean()
            least = torch.log(target).min().item()
        weight = 0.0 if step < SILENT else min(1.5, 0.1 * (step - SILENT + 1))
        loss = supervised + weight * gap
        self.say = (loss.item(), supervised.item(), gap.item() if step >= SILENT else math.nan, least)
        return loss

    def on_train_batch_end(self, outputs, batch, index):
        decay = 0.0 if self.global_step < SILENT else 0.9
        with torch.no_grad():
            for t, s in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                t.mul_(decay).add_(s, alpha=1 - decay)
        loss, sup, gap, far = self.say
        print(
            f"{self.global_step:>3} loss {loss:.7f} supervised {sup:.7f} gap {gap:.7f} least log-belief {far:.4f}",
            flush=True,
        )

    def configure_optimizers(self):
        return torch.optim.SGD(self.student.parameters(), lr=0.1, momentum=0.9)


def main():
    L.seed_everything(1938, verbose=False)
    loader = DataLoader(
        TensorDataset(*letters()), batch_size=64, shuffle=True, generator=torch.Generator().manual_seed(6)
    )
    model = SelfDistilled()
    trainer = L.Trainer(
        max_steps=STEPS,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=2.0,
    )
    trainer.fit(model, loader)
    print(sum(p.detach().abs().sum().item() for p in model.parameters()), flush=True)


if __name__ == "__main__":
    main()
