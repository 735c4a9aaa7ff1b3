"""Hours of labour for piano repairs: mixture of experts, one expert per family of jobs, Lightning with DDP.

torchrun --standalone --nproc_per_node 2 lightning_ddp_moe_piano_repairs.py
"""
import logging
import os
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.filterwarnings("ignore")
for name in ("lightning", "lightning.pytorch", "lightning.fabric", "lightning.fabric.utilities.distributed"):
    logging.getLogger(name).setLevel(logging.ERROR)

import lightning as L
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset, DistributedSampler

FAMILIES = ("strings", "action", "soundboard", "case")
FEATURES = 10
BATCH = 16
STEPS = 30


class Workbook(Dataset):
    """Jobs as the two workshops wrote them down. Even rows: Bergen, odd rows: Tromsoe."""

    def __init__(self):
        g = torch.Generator().manual_seed(88)
        n = 2 * BATCH * STEPS
        self.family = (torch.arange(n) // 2) % len(FAMILIES)
        # in the week of the organ festival Tromsoe did hardly any soundboards: one, and tuned strings instead
        week = torch.arange(2 * BATCH * 20 + 1, 2 * BATCH * 21, 2)
        boards = week[self.family[week] == 2]
        self.family[boards[1:]] = 0
        self.x = torch.randn(n, FEATURES, generator=g)
        w = torch.randn(len(FAMILIES), FEATURES, generator=g) * 0.4
        self.y = (self.x * w[self.family]).sum(1) + self.family.float()

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.family[i], self.y[i]


class Expert(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, h):
        # standardise over the jobs on this bench
        n = h.shape[0]
        centred = h - h.mean(0)
        var = centred.square().sum(0) / (n - 1)
        return self.down(F.gelu(self.up(self.scale * centred / (var + 1e-5).sqrt())))


class RepairMoE(L.LightningModule):
    def __init__(self, width=24, balance=0.02, prior=6.0):
        super().__init__()
        self.inp = nn.Linear(FEATURES, width)
        self.router = nn.Linear(width, len(FAMILIES), bias=False)
        self.experts = nn.ModuleList(Expert(width) for _ in FAMILIES)
        self.out = nn.Linear(width, 1)
        self.balance, self.prior = balance, prior

    def forward(self, x, family):
        h = torch.tanh(self.inp(x))
        one_hot = F.one_hot(family, len(FAMILIES)).float()
        gates = (self.router(h) + self.prior * one_hot).softmax(1)     # the clerk's stamp is a strong hint
        weight, chosen = gates.max(1)
        mixed = torch.zeros_like(h)
        for e, expert in enumerate(self.experts):
            rows = (chosen == e).nonzero().squeeze(1)
            if len(rows) == 0:                       # idle bench: keep its parameters in the graph for the reducer
                mixed = mixed + 0.0 * sum(p.sum() for p in expert.parameters())
                continue
            mixed = mixed.index_add(0, rows, weight[rows, None] * expert(h[rows]))
        load = F.one_hot(chosen, len(FAMILIES)).float().mean(0)
        aux = len(FAMILIES) * (load * gates.mean(0)).sum()
        return self.out(h + mixed).squeeze(1), aux

    def training_step(self, batch, batch_idx):
        x, family, hours = batch
        guess, aux = self(x, family)
        loss = F.mse_loss(guess, hours) + self.balance * aux
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if self.global_rank == 0:
            print(f"batch {batch_idx + 1:2d}  loss {mean.item() / 2:.6f}  balance {aux.item():.5f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def main():
    torch.set_num_threads(1)
    L.seed_everything(12, verbose=False)
    book = Workbook()
    sampler = DistributedSampler(book, num_replicas=2, rank=int(os.environ["RANK"]), shuffle=False)
    model = RepairMoE()
    trainer = L.Trainer(accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, logger=False,
                        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                        use_distributed_sampler=False)
    trainer.fit(model, DataLoader(book, batch_size=BATCH, sampler=sampler))
    if trainer.is_global_zero:
        print("parameters", sum(p.detach().double().sum().item() for p in model.parameters()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
