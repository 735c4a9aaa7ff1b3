# Forecasting the temperatures of four zones of a brick kiln with PatchTST, from a config.
# Thermocouples drop out, which the logger writes as nan.
import logging
import tempfile
import warnings

import numpy as np
import torch
from torch.utils.data import IterableDataset
from transformers import PatchTSTConfig, PatchTSTForPrediction, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from transformers.utils import logging as hf_logging

warnings.filterwarnings("ignore")
hf_logging.set_verbosity_error()
logging.disable(logging.WARNING)

CONTEXT, AHEAD, ZONES = 48, 8, 4


def kiln_log(hours=900, seed=17):
    rng = np.random.default_rng(seed)
    firing = 500 + 450 * np.clip(np.sin(np.arange(hours) * 2 * np.pi / 120), -0.5, 0.9)
    temp = np.zeros((hours, ZONES))
    temp[0] = 300
    for t in range(1, hours):
        temp[t] = temp[t - 1] + np.array([0.3, 0.2, 0.12, 0.08]) * (firing[t] - temp[t - 1]) + rng.normal(0, 4, ZONES)
    for _ in range(40):
        t, z = rng.integers(0, hours - 12), rng.integers(ZONES)
        temp[t:t + rng.integers(1, 12), z] = np.nan
    temp[300:360, 3] = np.nan       # the fourth thermocouple was being replaced
    return temp.astype(np.float32)


class Windows(IterableDataset):
    def __init__(self, table, n, seed):
        self.table, self.n, self.seed = table, n, seed

    def __iter__(self):
        rng = np.random.default_rng(self.seed)
        for _ in range(self.n):
            t = int(rng.integers(0, len(self.table) - CONTEXT - AHEAD))
            past = torch.from_numpy(self.table[t:t + CONTEXT])
            future = torch.from_numpy(self.table[t + CONTEXT:t + CONTEXT + AHEAD])
            yield {"past_values": past, "future_values": future}


class KilnTrainer(Trainer):
    """Median of the quantile loss over the readings that exist, plus a penalty on jumps."""

    quantiles = (0.1, 0.5, 0.9)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        past, future = inputs["past_values"], inputs["future_values"]
        seen, wanted = ~past.isnan(), ~future.isnan()
        out = model(past_values=past.nan_to_num(0.0), past_observed_mask=seen, return_dict=True)
        predicted = out.prediction_outputs
        scale = out.scale.detach().clamp(min=25.0)
        error = (future.nan_to_num(0.0) - predicted) / scale
        pinball = sum(torch.maximum(q * error, (q - 1) * error) for q in self.quantiles)
        loss = pinball[wanted].mean()
        jumps = ((predicted[:, 0] - past.nan_to_num(0.0)[:, -1]) / scale[:, 0])[seen[:, -1]]
        loss = loss + 0.01 * jumps.square().clamp(max=25).mean()
        loss = loss / self.args.gradient_accumulation_steps
        return (loss, out) if return_outputs else loss


class Show(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(f"step {state.global_step:2d}  loss {float(logs['loss']):.4f}  lr {float(logs['learning_rate']):.2e}",
                  flush=True)


def main():
    torch.manual_seed(0)
    config = PatchTSTConfig(num_input_channels=ZONES, context_length=CONTEXT, prediction_length=AHEAD, patch_length=8,
                            patch_stride=8, d_model=32, num_hidden_layers=2, num_attention_heads=2, ffn_dim=64,
                            scaling="std", loss="mse", norm_type="layernorm")
    model = PatchTSTForPrediction(config)
    args = TrainingArguments(
        output_dir=tempfile.mkdtemp(), max_steps=24, per_device_train_batch_size=4, gradient_accumulation_steps=3,
        learning_rate=3e-3, lr_scheduler_type="cosine_with_restarts", lr_scheduler_kwargs={"num_cycles": 2},
        warmup_steps=4, logging_steps=2, max_grad_norm=0.5, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, seed=0)
    trainer = KilnTrainer(model=model, args=args, train_dataset=Windows(kiln_log(), 400, 1), callbacks=[Show()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    print("weights", round(float(sum(p.detach().norm() for p in model.parameters())), 3))


if __name__ == "__main__":
    main()
