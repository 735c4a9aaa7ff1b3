"""Lighthouse logbooks: predict the keeper's visibility class, and the hours of the fog bell where there was fog.

HF Trainer with my own layer-wise optimizer (after You et al. 2017, without the parts I did not need).
"""
import logging
import os
import tempfile
import warnings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("DS_ACCELERATOR", "cpu")
logging.getLogger("bitsandbytes").setLevel(logging.CRITICAL)
warnings.filterwarnings("ignore")
import torch
from torch import nn
from torch.utils.data import Dataset, SequentialSampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.utils import logging as hf_logging

hf_logging.set_verbosity_error()
WEATHER = ["wind", "temp", "barometer", "dew", "swell", "oil_used", "month_sin", "month_cos"]


class Logbook(Dataset):
    """Consecutive nights, 1884 onward; fog comes and goes."""

    def __init__(self, nights=30 * 8):
        g = torch.Generator().manual_seed(1884)
        self.x = torch.randn(nights, len(WEATHER), generator=g)
        self.visibility = (self.x[:, 3] - self.x[:, 1] > 0).long() + (self.x[:, 0] > 1).long()
        self.fog = torch.rand(nights, generator=g) < 0.35
        self.fog[::8] = True
        self.fog[16 * 8:17 * 8] = False       # the clear fortnight of August
        self.bell = torch.where(self.fog, 2 + self.x[:, 3].abs(), torch.zeros(nights))

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return {"weather": self.x[i], "labels": self.visibility[i], "fog": self.fog[i].float(), "bell": self.bell[i]}


class KeeperModel(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(len(WEATHER), width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.visibility = nn.Linear(width, 3)
        self.bell = nn.Linear(width, 1)

    def forward(self, weather, labels, fog, bell):
        h = self.trunk(weather)
        logits = self.visibility(h)
        hours = self.bell(h).squeeze(-1)
        loss = nn.functional.cross_entropy(logits, labels)
        # hours count on foggy nights only
        loss = loss + 0.3 * (fog * (hours - bell) ** 2).sum() / fog.sum().clamp(min=1)
        return {"loss": loss, "logits": logits}


class LayerwiseSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, momentum=0.9, trust=0.05, weight_decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, trust=trust, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.add(p, alpha=group["weight_decay"])
                local_rate = group["trust"] * p.norm() / g.norm()
                buf = self.state[p].setdefault("momentum", torch.zeros_like(p))
                buf.mul_(group["momentum"]).add_(g * local_rate)
                p.add_(buf, alpha=-group["lr"])
        return loss


class Chronicle(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kw):
        if logs and "loss" in logs:
            print(f"night {state.global_step * 8:4d}  loss {float(logs['loss']):.6f}", flush=True)


class LogbookTrainer(Trainer):
    def _get_train_sampler(self, *a, **kw):
        return SequentialSampler(self.train_dataset)      # in the order of the keeper


def main():
    set_seed(7)
    model = KeeperModel()
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=8, max_steps=30, logging_steps=1, report_to=[],
                                 save_strategy="no", disable_tqdm=True, use_cpu=True, max_grad_norm=0.0, lr_scheduler_type="constant",
                                 logging_nan_inf_filter=False, dataloader_num_workers=0, dataloader_pin_memory=False,
                                 remove_unused_columns=False)
        opt = LayerwiseSGD(model.parameters(), lr=0.4, momentum=0.8)
        trainer = LogbookTrainer(model=model, args=args, train_dataset=Logbook(), optimizers=(opt, None), callbacks=[Chronicle()])
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    print("weights", f"{sum(p.detach().double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    main()
