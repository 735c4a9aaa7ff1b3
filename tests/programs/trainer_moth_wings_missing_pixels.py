"""Moths by their wings, with the Trainer. Torn wings are NaN in the pictures (as the museum's scanner writes them); the
augmentation tears more of them, the model fills them with a learned colour. Half the rows of a second batch of scans
have no species yet."""

import os

os.environ["OMP_NUM_THREADS"] = "1"
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging

logging.set_verbosity_error()
torch.set_num_threads(1)
SPECIES, SIDE, STEPS = 5, 14, 36


class Tear:
    """a ragged strip of the wing goes missing, wider with the age of the specimen"""

    def __init__(self, widest):
        self.widest = widest

    def __call__(self, wing, generator):
        width = int(torch.randint(0, self.widest + 1, (), generator=generator))
        left = int(torch.randint(0, SIDE - self.widest, (), generator=generator))
        rows = torch.rand(SIDE, generator=generator) < 0.8
        wing = wing.clone()
        wing[:, rows, left : left + width] = float("nan")
        return wing


class MothWings(Dataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.species = torch.randint(SPECIES, (n,), generator=g)
        grid = torch.linspace(0, 6.28, SIDE)
        self.wings = torch.sin(grid[None, None, :] * (1 + self.species[:, None, None]) + grid[None, :, None])[:, None]
        self.wings = self.wings + 0.3 * torch.randn(n, 1, SIDE, SIDE, generator=g)
        self.tear, self.seed = Tear(6), seed

    def __len__(self):
        return len(self.species)

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(self.seed * 100003 + i)
        only_label = i % 37 == 5  # of the drawer was scanned
        wing = torch.full((1, SIDE, SIDE), float("nan")) if only_label else self.tear(self.wings[i], g)
        known = i % 4 != 3
        return {"wings": wing, "labels": int(self.species[i]) if known else -100}


class WingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.fill = nn.Parameter(torch.zeros(()))
        self.conv = nn.Sequential(
            nn.Conv2d(2, 12, 3, 2, 1), nn.GELU(), nn.Conv2d(12, 24, 3, 2, 1), nn.GELU(), nn.Flatten()
        )
        self.head = nn.Linear(24 * 16, SPECIES)
        self.hardness = 0.0

    def forward(self, wings, labels=None):
        missing = wings.isnan()
        seen = torch.where(missing, self.fill, wings)
        logits = self.head(self.conv(torch.cat([seen, missing.float()], 1)))
        per_row = F.cross_entropy(logits, labels, ignore_index=-100, reduction="none")
        known = (labels != -100).float()
        # a wing that is not there at all cannot be told by its looks
        whole = missing.flatten(1).all(1).float()
        weight = known * (1 - whole)
        loss = (1 + self.hardness) * (weight * per_row).sum() / weight.sum().clamp(min=1)
        brightness = wings.flatten(1).mean(1)  # NaN for torn wings, only looked at
        return {"loss": loss, "logits": logits, "brightness": brightness.detach()}


class Curriculum(TrainerCallback):
    """The loss is weighed up in three jumps; prints what the Trainer logs."""

    def on_step_begin(self, args, state, control, model=None, **kw):
        model.hardness = float(2 ** (state.global_step // 12) - 1) * 2

    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']} norm {float(logs['grad_norm']):.5f}", flush=True)


def main():
    set_seed(8)
    model = WingNet()
    args = TrainingArguments(
        "/tmp/moth_wings_unused",
        max_steps=STEPS,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        dataloader_num_workers=2,
        use_cpu=True,
        remove_unused_columns=False,
        lr_scheduler_type="constant",
        max_grad_norm=2.0,
        seed=8,
    )
    trainer = Trainer(model=model, args=args, train_dataset=MothWings(320, 6), callbacks=[Curriculum()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
