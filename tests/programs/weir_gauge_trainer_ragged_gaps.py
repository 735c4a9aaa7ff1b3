"""Forecast of the water level behind a weir, from gauges that fall silent. Hugging Face Trainer, own collator.

Readings that are missing stay NaN in the batch (so that nobody can take them for a level of 0), and targets that lie
past the end of a record are inf. The model looks at both and leaves them out. The horizon grows from 1 to 4 hours.
"""
import math

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

STEPS = 44


class GaugeRecords(Dataset):
    def __init__(self, n, seed=7):
        rng = np.random.default_rng(seed)
        self.rows = []
        for i in range(n):
            t = np.arange(rng.integers(18, 40))
            level = 2 + np.sin(t / rng.uniform(3, 8) + rng.uniform(0, 6)) + 0.05 * rng.standard_normal(len(t))
            level[rng.random(len(t)) < 0.12] = np.nan
            if i % 23 == 11:
                level[:] = np.nan                    # a gauge under ice: its record is kept, for the count
            self.rows.append({"level": level.astype(np.float32), "station": int(i % 5)})

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


class RaggedCollator:
    """Pads levels with NaN and targets with inf; `horizon` is turned by the callback."""

    def __init__(self):
        self.horizon = 1

    def __call__(self, rows):
        longest = max(len(r["level"]) for r in rows)
        levels = torch.full((len(rows), longest), math.nan)
        targets = torch.full((len(rows), longest), math.inf)
        for i, r in enumerate(rows):
            x = torch.from_numpy(r["level"])
            levels[i, : len(x)] = x
            targets[i, : len(x) - self.horizon] = x[self.horizon:]
        return {"levels": levels, "labels": targets, "station": torch.tensor([r["station"] for r in rows])}


class WeirNet(nn.Module):
    def __init__(self, width=24, stations=5):
        super().__init__()
        self.station = nn.Embedding(stations, 4)
        self.cell = nn.GRU(2 + 4, width, batch_first=True)
        self.head = nn.Linear(width, 1)
        self.datum = nn.Parameter(torch.zeros(1), requires_grad=False)     # fixed: height of the crest

    def forward(self, levels, labels, station):
        seen = torch.isfinite(levels)
        filled = torch.where(seen, levels, torch.zeros_like(levels)) - self.datum
        where = self.station(station)[:, None].expand(-1, levels.shape[1], -1)
        h, _ = self.cell(torch.cat([filled[..., None], seen[..., None].float(), where], -1))
        forecast = self.head(h).squeeze(-1)
        known = torch.isfinite(labels)
        loss = (forecast[known] - labels[known]).square().sum() / known.sum().clamp(min=1)
        return {"loss": loss, "forecast": forecast}


class HorizonCurriculum(TrainerCallback):
    def __init__(self, collator):
        self.collator = collator

    def on_step_begin(self, args, state, control, **kw):
        self.collator.horizon = 1 + state.global_step // 11


class WeirTrainer(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        per_gauge = inputs["levels"].nanmean(1)               # NaN for a gauge that saw nothing
        spread = (inputs["levels"] - per_gauge[:, None]).abs().amax().item()
        print(f"step {self.state.global_step + 1} mse {out['loss'].item():.7f} mean level {per_gauge.mean().item():.4f} "
              f"largest excursion {spread:.3f} largest target {inputs['labels'].amax().item():.1f}", flush=True)
        return (out["loss"], out) if return_outputs else out["loss"]


def main():
    set_seed(3)
    collator = RaggedCollator()
    model = WeirNet()
    args = TrainingArguments("/tmp/weir_gauge", per_device_train_batch_size=8, max_steps=STEPS, learning_rate=1e-2,
                             warmup_steps=4, report_to="none", save_strategy="no", logging_strategy="no",
                             disable_tqdm=True, use_cpu=True, remove_unused_columns=False, seed=3,
                             label_names=["labels"])
    trainer = WeirTrainer(model=model, args=args, train_dataset=GaugeRecords(160), data_collator=collator,
                          callbacks=[HorizonCurriculum(collator)])
    trainer.remove_callback(PrinterCallback)          # prints run times
    trainer.train()
    print("sum of weights", round(sum(float(p.detach().abs().sum()) for p in model.parameters()), 5))


if __name__ == "__main__":
    main()
