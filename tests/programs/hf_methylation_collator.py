"""Epigenetic clock: age from methylation M-values, with the Hugging Face Trainer on a plain module."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
import torch
from torch import nn
from transformers import PrinterCallback, Trainer, TrainingArguments, set_seed

SITES = 18


def cohort(n=48):
    g = torch.Generator().manual_seed(5)
    people = []
    for k in range(n):
        age = 20 + 60 * torch.rand((), generator=g)
        beta = torch.sigmoid(torch.randn(SITES, generator=g) + (age - 50) / 40)
        if k == 30:
            beta[11] = 1.0        # the unmethylated channel of this probe read nothing
        people.append({"beta": beta, "age": age})
    return people


class MValues:
    """Collator: beta values to log2 odds, as the limma people do."""

    def __call__(self, people):
        beta = torch.stack([p["beta"] for p in people])
        odds = beta / (1 - beta)
        return {"m": odds.log2(), "labels": torch.stack([p["age"] for p in people])}


class Clock(nn.Module):
    def __init__(self):
        super().__init__()
        self.sites = nn.Linear(SITES, 16)
        self.years = nn.Linear(16, 1)

    def forward(self, m, labels=None):
        hidden = torch.relu(self.sites(m))
        age = 50 + 10 * self.years(hidden).squeeze(-1)
        return {"loss": nn.functional.l1_loss(age, labels), "logits": age}


class ClockTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kwargs):
        out = model(**inputs)
        print(f"step {self.state.global_step + 1} mae {out['loss'].item():.17g}", flush=True)
        return (out["loss"], out) if return_outputs else out["loss"]


set_seed(12)
clock = Clock()
with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(output_dir=folder, per_device_train_batch_size=6, num_train_epochs=2, learning_rate=3e-3,
                             lr_scheduler_type="constant", report_to=[], save_strategy="no", logging_strategy="no",
                             disable_tqdm=True, use_cpu=True, remove_unused_columns=False, seed=12)
    trainer = ClockTrainer(model=clock, args=args, train_dataset=cohort(), data_collator=MValues())
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print(sum(p.detach().double().sum().item() for p in clock.parameters()))
