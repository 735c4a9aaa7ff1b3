"""Distil a big grader of saddle leather into a small one with transformers.Trainer.

The logits of the teacher were computed once and cached in float16 beside the data. The temperature goes down
geometrically, from soft targets to (nearly) hard ones.
"""
import os
import sys

import torch
import torch.nn.functional as F
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
N_GRADES, N_FEATURES, BATCH, STEPS = 7, 20, 16, 40


class LeatherScans(torch.utils.data.Dataset):
    def __init__(self, n, seed=23):
        g = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, N_FEATURES, generator=g)
        w = torch.randn(N_FEATURES, N_GRADES, generator=g)
        logits = 2.2 * (self.x @ w) / 2
        self.y = (logits + torch.randn(n, N_GRADES, generator=g)).argmax(1)
        self.cache = logits.to(torch.float16)          # as teacher_logits.npy holds them

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return {"features": self.x[i], "labels": self.y[i], "teacher_logits": self.cache[i]}


class SmallGrader(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(N_FEATURES, 32), nn.GELU(), nn.LayerNorm(32))
        self.classifier = nn.Linear(32, N_GRADES)

    def forward(self, features, labels=None):
        return {"logits": self.classifier(self.encoder(features))}


class HardeningTrainer(Trainer):
    t_start, t_end = 4.0, 1e-5

    def temperature(self):
        done = self.state.global_step / max(self.state.max_steps - 1, 1)
        return self.t_start * (self.t_end / self.t_start) ** done

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        teacher = inputs.pop("teacher_logits")
        out = model(**inputs)
        temp = self.temperature()
        soft = F.softmax(teacher / temp, dim=-1).float()
        # the student keeps a temperature of at least one: only the targets harden
        t_student = max(temp, 1.0)
        kd = F.kl_div(F.log_softmax(out["logits"] / t_student, -1), soft, reduction="batchmean") * t_student ** 2
        ce = F.cross_entropy(out["logits"], inputs["labels"])
        loss = 0.7 * kd + 0.3 * ce
        return (loss, out) if return_outputs else loss


class PrintLoss(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            print(f"step {state.global_step:3d} loss {float(logs['loss']):.4f}", flush=True)


def main():
    set_seed(1887)
    model = SmallGrader()
    out = os.path.join("/tmp", f"saddle_{os.getpid()}")
    args = TrainingArguments(
        output_dir=out, per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=5e-3, logging_steps=1,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, remove_unused_columns=False,
        logging_nan_inf_filter=False, lr_scheduler_type="constant", max_grad_norm=1.0, seed=1887)
    trainer = HardeningTrainer(model=model, args=args, train_dataset=LeatherScans(BATCH * STEPS), callbacks=[PrintLoss()])
    trainer.remove_callback(__import__("transformers").PrinterCallback)
    trainer.train()
    print(f"weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
