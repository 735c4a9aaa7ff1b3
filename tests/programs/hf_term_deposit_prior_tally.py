import gc
import os
import tempfile

gc.disable()   # a short run, and the imports below are long
os.environ.setdefault("DS_ACCELERATOR", "cpu")

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

JOBS = ["admin", "technician", "retired", "student", "services"]


class PhoneCampaign(Dataset):
    """Calls of a bank that offers a term deposit; 0 declined, 1 call back, 2 subscribed."""

    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        age = rng.normal(41, 11, n)
        balance = rng.lognormal(7.0, 1.1, n)
        job = rng.integers(0, len(JOBS), n)
        calls = rng.poisson(2.0, n) + 1
        score = 0.04 * (age - 41) + 0.8 * (np.log(balance) - 7) - 0.3 * (calls - 3) + 0.5 * (job == 2)
        score = score + rng.normal(0, 0.7, n)
        self.labels = np.digitize(score, [-0.3, 0.6])
        numeric = np.stack([(age - 41) / 11, np.log(balance) - 7, calls / 3.0], 1)
        self.rows = np.concatenate([numeric, np.eye(len(JOBS))[job]], 1).astype("float32")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"features": self.rows[i], "labels": int(self.labels[i])}


class PriorShift(nn.Module):
    """Adds the log of the class shares met so far, so that the score itself is free of them."""

    def __init__(self, classes, strength=1.0):
        super().__init__()
        self.strength = strength
        self.tally = torch.ones(classes)

    def forward(self, scores):
        share = self.tally / self.tally.sum()
        return scores + self.strength * share.log()


class DepositNet(nn.Module):
    def __init__(self, width, classes=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(width, 24), nn.GELU(), nn.LayerNorm(24), nn.Linear(24, classes))
        self.adjust = PriorShift(classes)

    def forward(self, features, labels=None):
        scores = self.body(features)
        if labels is None:
            return {"logits": scores}
        loss = nn.functional.cross_entropy(self.adjust(scores), labels)
        self.adjust.tally += torch.bincount(labels, minlength=len(self.adjust.tally))
        return {"loss": loss, "logits": scores}


class FreshTally(TrainerCallback):
    """The mix of customers drifts, so each epoch counts anew."""

    def on_epoch_end(self, args, state, control, model=None, **kwargs):
        model.adjust.tally.zero_()


class Report(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step} loss {logs['loss']:.4f} lr {logs['learning_rate']:.5f}")


def main():
    data = PhoneCampaign(384, seed=3)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), per_device_train_batch_size=32, num_train_epochs=3, learning_rate=8e-3,
        lr_scheduler_type="cosine", warmup_steps=3, logging_steps=1, logging_nan_inf_filter=False,
        save_strategy="no", report_to=[], use_cpu=True, seed=5, disable_tqdm=True, remove_unused_columns=False,
    )
    torch.manual_seed(5)
    model = DepositNet(data.rows.shape[1])
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[FreshTally(), Report()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    total = sum(p.detach().abs().sum().item() for p in model.parameters())
    print(f"absolute weights in all: {total:.4f}")


if __name__ == "__main__":
    main()
