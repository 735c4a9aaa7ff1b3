"""Sum insured of art works: density model for log prices per square metre of canvas.

The HF Trainer does the book-keeping; three of its methods are ours:
  compute_loss      mixture of the density head and a ranking term between works of one artist
  training_step     FGM: a second backward with a perturbed artist embedding
  create_optimizer  three groups, the encoder frozen for provenance, a hotter head
"""
import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"

import logging
import math
import tempfile
import warnings
from functools import cached_property

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)      # other libraries talk while they are imported

import torch
from torch import nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

ARTISTS, MEDIA = 14, 5


class Work:
    """A lot of the archive; the derived columns are only computed when a batch wants them."""

    def __init__(self, i):
        self.g = torch.Generator().manual_seed(900 + i)
        self.artist = i % ARTISTS
        self.medium = (i * 7) % MEDIA
        self.height, self.width = (torch.rand(2, generator=self.g) * 1.5 + 0.2).tolist()
        self.year = 1650 + (i * 37) % 350

    @cached_property
    def numeric(self):
        area = self.height * self.width
        return torch.tensor([math.log(area), math.log(self.height / self.width), (self.year - 1825) / 100])

    @cached_property
    def log_price(self):
        noise = 0.03 * torch.randn(1, generator=self.g).item()
        return 0.4 * math.sin(self.artist) + 0.1 * self.medium + 0.2 * self.numeric[0].item() + noise


class Vault(Dataset):
    def __init__(self, n):
        self.works = [Work(i) for i in range(n)]

    def __len__(self):
        return len(self.works)

    def __getitem__(self, i):
        return self.works[i]


class VaultCollator:
    """Also says which pairs of the batch are of one artist; many batches have none, hence the empty tensor."""

    def __call__(self, works):
        a = torch.tensor([w.artist for w in works])
        i, j = torch.triu_indices(len(works), len(works), 1)
        same = a[i] == a[j]
        return {"artist": a, "medium": torch.tensor([w.medium for w in works]),
                "numeric": torch.stack([w.numeric for w in works]),
                "labels": torch.tensor([w.log_price for w in works]),
                "left": i[same], "right": j[same]}


class Appraiser(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.artist = nn.Embedding(ARTISTS, d)
        self.medium = nn.Embedding(MEDIA, d)
        self.provenance = nn.Sequential(nn.Linear(3, d), nn.Tanh())     # pre-trained elsewhere, kept as it is
        self.body = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.head = nn.Linear(d + 3, 2)
        self.provenance.requires_grad_(False)

    def forward(self, artist, medium, numeric):
        h = self.artist(artist) + self.medium(medium) + self.provenance(numeric)
        mu, log_sigma = self.head(torch.cat([self.body(h), numeric], -1)).unbind(-1)
        return mu, log_sigma.clamp(-4.5, 2.0)


class PremiumTrainer(Trainer):
    rank_weight, fgm_eps = 0.1, 0.2

    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.beside = {}

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        mu, log_sigma = model(inputs["artist"], inputs["medium"], inputs["numeric"])
        y = inputs["labels"]
        density = log_sigma + 0.5 * ((y - mu) * torch.exp(-log_sigma)) ** 2    # the constant is left out
        loss = density.mean()
        l, r = inputs["left"], inputs["right"]
        if len(l):
            sign = torch.sign(y[l] - y[r])
            loss = loss + self.rank_weight * nn.functional.softplus(-8 * sign * (mu[l] - mu[r])).mean()
        with torch.no_grad():
            # agreement within artists is not defined for batches without pairs: shown as nan, used nowhere
            self.beside["agree"] = ((mu[l] > mu[r]) == (y[l] > y[r])).float().mean().item()
            self.beside["sigma"] = log_sigma.exp().mean().item()
        return (loss, {"mu": mu}) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        model.train()
        inputs = self._prepare_inputs(inputs)
        loss = self.compute_loss(model, inputs)
        self.accelerator.backward(loss)
        table = model.artist.weight
        rho = self.fgm_eps * table.grad / (table.grad.norm() + 1e-6)
        table.data.add_(rho)
        self.accelerator.backward(0.5 * self.compute_loss(model, inputs))
        table.data.sub_(rho)
        return loss.detach()

    def create_optimizer(self, *_, **__):
        if self.optimizer is None:
            m = self.model
            groups = [{"params": [m.artist.weight, m.medium.weight], "lr": 2e-2, "weight_decay": 0.0},
                      {"params": list(m.body.parameters()), "lr": 5e-3, "weight_decay": 1e-2},
                      {"params": list(m.head.parameters()), "lr": 1e-2, "weight_decay": 0.0}]
            self.optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98))
        return self.optimizer


class Ledger(TrainerCallback):
    def __init__(self):
        self.trainer = None

    def on_log(self, args, state, control, logs=None, **kw):
        if "loss" in logs:
            b = self.trainer.beside
            print(f"{state.global_step:3d} loss {logs['loss']:+.6f} agree {b['agree']:.3f} sigma {b['sigma']:.4f}")


def main():
    set_seed(31)
    ledger = Ledger()
    with tempfile.TemporaryDirectory() as tmp:
        args = TrainingArguments(output_dir=tmp, per_device_train_batch_size=6, max_steps=48, logging_steps=1,
                                 save_strategy="no", report_to=[], disable_tqdm=True, lr_scheduler_type="cosine",
                                 warmup_steps=4, use_cpu=True, remove_unused_columns=False, seed=31,
                                 max_grad_norm=2.0, logging_nan_inf_filter=False, dataloader_pin_memory=False)
        trainer = PremiumTrainer(model=Appraiser(), args=args, train_dataset=Vault(150),
                                 data_collator=VaultCollator(), callbacks=[ledger])
        trainer.remove_callback(PrinterCallback)
        ledger.trainer = trainer
        trainer.train()
        total = sum(p.detach().double().sum().item() for p in trainer.model.parameters())
    print(f"premium table written, checksum {total:.5f}")


if __name__ == "__main__":
    main()
