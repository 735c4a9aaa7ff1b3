import os
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
import tempfile
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import Dataset
from transformers import (PretrainedConfig, PreTrainedModel, Trainer, TrainerCallback, TrainingArguments, set_seed)
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.utils import logging

logging.set_verbosity_error()


class FeederConfig(PretrainedConfig):
    model_type = "feeder"

    def __init__(self, width=16, species=7, **kw):
        super().__init__(**kw)
        self.width, self.species = width, species


class FeederNet(PreTrainedModel):
    config_class = FeederConfig

    def __init__(self, config):
        super().__init__(config)
        w = config.width
        self.stem = nn.Conv2d(3, w, 3, padding=1)
        self.block = nn.Sequential(nn.GroupNorm(4, w), nn.GELU(), nn.Conv2d(w, w, 3, padding=1, stride=2), nn.GELU())
        self.head = nn.Linear(w, config.species)
        self.post_init()

    def forward(self, pixels, labels=None):
        h = self.block(self.stem(pixels)).mean((2, 3))
        return {"logits": self.head(h)}


class Frames(Dataset):
    def __init__(self, n=512, species=7, seed=2):
        g = torch.Generator().manual_seed(seed)
        self.labels = torch.randint(species, (n,), generator=g)
        prototypes = torch.randn(species, 3, 1, 1, generator=g)
        self.pixels = prototypes[self.labels] + 0.7 * torch.randn(n, 3, 12, 12, generator=g)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        return {"pixels": self.pixels[i], "labels": self.labels[i]}


def linear_cooling(step, start, rate):
    """Temperature of a step: from `start` down by `rate` a step, never below zero."""
    return max(start - rate * step, 0.0)


class CoolingCallback(TrainerCallback):
    def __init__(self, schedule):
        self.schedule, self.temperature = schedule, None

    def on_step_begin(self, args, state, control, **kw):
        self.temperature = self.schedule(state.global_step)


class StepPrinter(TrainerCallback):
    def __init__(self, cooling):
        self.cooling, self.trainer = cooling, None

    def on_step_end(self, args, state, control, **kw):
        print(f"step {state.global_step} T {self.cooling.temperature:.2f} loss {self.trainer.last:.7f}", flush=True)


class Distiller(Trainer):
    def __init__(self, *args, teacher, cooling, alpha=0.5, **kw):
        super().__init__(*args, **kw)
        self.teacher, self.cooling, self.alpha, self.last = teacher.eval(), cooling, alpha, None

    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        temperature = self.cooling.temperature
        out = model(pixels=inputs["pixels"])
        hard = F.cross_entropy(out["logits"], inputs["labels"])
        student = F.log_softmax(out["logits"] / temperature, dim=-1)
        with torch.no_grad():
            target = F.softmax(self.teacher(pixels=inputs["pixels"])["logits"] / temperature, dim=-1)
        soft = F.kl_div(student, target, reduction="batchmean") * temperature ** 2
        loss = self.alpha * hard + (1 - self.alpha) * soft
        self.last = loss.item()
        return (loss, out) if return_outputs else loss


def pretrain(teacher, frames):
    with torch.no_grad():  # a closed-form teacher: class means of its own features
        h = teacher.block(teacher.stem(frames.pixels)).mean((2, 3))
        h = (h - h.mean(0)) / h.std(0)
        for c in range(teacher.config.species):
            teacher.head.weight[c] = h[frames.labels == c].mean(0)


def main():
    set_seed(2)
    frames = Frames()
    teacher, student = FeederNet(FeederConfig(width=32)), FeederNet(FeederConfig(width=12))
    pretrain(teacher, frames)
    cooling = CoolingCallback(partial(linear_cooling, start=4.0, rate=0.25))
    printer = StepPrinter(cooling)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(output_dir=folder, max_steps=30, per_device_train_batch_size=16, learning_rate=4e-3,
                                 use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
                                 disable_tqdm=True, seed=2, remove_unused_columns=False, lr_scheduler_type="constant")
        trainer = Distiller(model=student, args=args, train_dataset=frames, callbacks=[cooling, printer],
                            teacher=teacher, cooling=cooling)
        trainer.remove_callback(PrinterCallback)
        printer.trainer = trainer
        trainer.train()
    print(f"{sum(p.detach().abs().sum().item() for p in student.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
