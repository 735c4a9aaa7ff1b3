"""Forecast loom vibration channels with instance normalisation that is undone at the output, trained with the HF Trainer."""
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
from torch import nn
from transformers import PrinterCallback, ProgressCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

CHANNELS, LOOKBACK, HORIZON = 3, 32, 8


class LoomWindows(torch.utils.data.Dataset):
    def __init__(self, n=480, seed=40):
        rng = np.random.default_rng(seed)
        length = n * 4 + LOOKBACK + HORIZON
        t = np.arange(length)
        series = np.stack([np.sin(t / p) + 0.4 * np.sin(t / (3.1 * p)) for p in (2.3, 3.7, 5.9)], 1)
        series += 0.1 * rng.normal(size=series.shape) + 0.002 * t[:, None]
        series[1030:1070, 1] = series[1030, 1]       # the logger held its last reading while the weaver changed the beam
        self.series = series.astype(np.float32)
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        at = i * 4
        return {"past": self.series[at:at + LOOKBACK], "future": self.series[at + LOOKBACK:at + LOOKBACK + HORIZON]}


class ReversibleNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(CHANNELS))
        self.bias = nn.Parameter(torch.zeros(CHANNELS))

    def forward(self, x):
        self.mean = x.mean(1, keepdim=True)
        centred = x - self.mean
        self.std = centred.pow(2).amax(1, keepdim=True).sqrt()      # peak amplitude, the unit of the mill
        return centred / self.std * self.gain + self.bias

    def undo(self, y):
        return (y - self.bias) / self.gain * self.std + self.mean


class Forecaster(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.norm = ReversibleNorm()
        self.mix = nn.Sequential(nn.Linear(LOOKBACK, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, HORIZON))
        self.skip = nn.Linear(LOOKBACK, HORIZON)

    def forward(self, past, future=None):
        z = self.norm(past).transpose(1, 2)
        out = self.norm.undo((self.mix(z) + self.skip(z)).transpose(1, 2))
        return {"loss": nn.functional.l1_loss(out, future), "forecast": out}


class LoomTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        self.shown = out["loss"].item()
        return (out["loss"], out) if return_outputs else out["loss"]

    def _get_train_sampler(self, *a, **k):
        return torch.utils.data.SequentialSampler(self.train_dataset)


class Lines(TrainerCallback):
    def on_step_end(self, args, state, control, **kw):
        print(f"step {state.global_step} mae {trainer.shown:.6f}", flush=True)


if __name__ == "__main__":
    set_seed(41)
    model = Forecaster()
    with tempfile.TemporaryDirectory() as out:
        args = TrainingArguments(out, per_device_train_batch_size=12, max_steps=40, learning_rate=3e-3, max_grad_norm=1.0,
                                 lr_scheduler_type="constant", dataloader_num_workers=2, logging_strategy="no",
                                 save_strategy="no", report_to=[], use_cpu=True, remove_unused_columns=False, disable_tqdm=True)
        trainer = LoomTrainer(model=model, args=args, train_dataset=LoomWindows(), callbacks=[Lines()])
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)
