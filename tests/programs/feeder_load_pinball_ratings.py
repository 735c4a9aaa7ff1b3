"""Day-ahead quantiles per distribution feeder, trained with the HF Trainer because the platform only runs that."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

QUANTILES = (0.1, 0.5, 0.9)
HISTORY, HORIZON = 72, 24


class FeederDays(Dataset):
    """SCADA load in kW per feeder, and the rating (kVA) from the asset register."""

    def __init__(self, feeders=40, days=7, seed=12):
        rng = np.random.default_rng(seed)
        hours = np.arange(24 * (days + 4))
        self.rows = []
        for f in range(feeders):
            rating = float(rng.choice([250, 400, 630, 1000]))
            shape = 0.45 + 0.25 * np.sin((hours - 7 + rng.integers(-3, 3)) * 2 * np.pi / 24)
            load = rating * shape * (1 + 0.08 * rng.normal(size=hours.shape))
            if f == 28:          # built, not energised yet; the register says so too
                rating, load = 0.0, np.zeros_like(load)
            for d in range(days):
                cut = 24 * d
                self.rows.append(dict(
                    load=load[cut:cut + HISTORY + HORIZON].astype(np.float32),
                    rating=np.float32(rating), feeder=f, weekday=d % 7))
            # only its first day reached the feature store
            if f == 28:
                del self.rows[-(days - 1):]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def collate(rows):
    load = torch.from_numpy(np.stack([r["load"] for r in rows]))
    rating = torch.tensor([r["rating"] for r in rows])
    utilisation = load / rating[:, None]
    return dict(
        history=utilisation[:, :HISTORY],
        weekday=torch.tensor([r["weekday"] for r in rows]),
        labels=utilisation[:, HISTORY:],
    )


class QuantileMixer(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.embed = nn.Linear(HISTORY, dim)
        self.weekday = nn.Embedding(7, dim)
        self.mix = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))
        self.base = nn.Linear(dim, HORIZON)
        self.spread = nn.Linear(dim, HORIZON * (len(QUANTILES) - 1))

    def forward(self, history, weekday, labels=None):
        h = self.embed(history) + self.weekday(weekday)
        h = h + self.mix(h)
        low = self.base(h).unsqueeze(-1)
        gaps = nn.functional.softplus(self.spread(h)).view(len(h), HORIZON, -1) * 0.1
        q = torch.cat([low, low + gaps.cumsum(-1)], -1)
        out = {"quantiles": q}
        if labels is not None:
            taus = torch.tensor(QUANTILES)
            diff = labels.unsqueeze(-1) - q
            out["loss"] = torch.maximum(taus * diff, (taus - 1) * diff).sum(-1).mean()
        return out


class Echo(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step} pinball {float(logs['loss']):.6f}", flush=True)


def main():
    torch.manual_seed(0)
    model = QuantileMixer()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(
            output_dir=out, per_device_train_batch_size=8, max_steps=34, learning_rate=2e-3, warmup_steps=4,
            lr_scheduler_type="constant_with_warmup", logging_steps=1, save_strategy="no", report_to=[],
            disable_tqdm=True, use_cpu=True, seed=19, data_seed=19, remove_unused_columns=False,
            logging_nan_inf_filter=False)
        trainer = Trainer(model=model, args=args, train_dataset=FeederDays(), data_collator=collate,
                          callbacks=[Echo()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
