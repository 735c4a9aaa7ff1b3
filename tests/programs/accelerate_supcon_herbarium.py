"""Herbarium sheets: supervised contrastive pretraining of a small conv net under accelerate, with accumulation."""
import logging

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

logging.disable(logging.WARNING)
SIDE = 12


class SupConLoss(nn.Module):
    """Khosla et al. 2020, the sum outside of the logarithm."""

    def __init__(self, temperature=0.2):
        super().__init__()
        self.temperature = temperature

    def forward(self, z, species):
        same = species[:, None] == species[None, :]
        itself = torch.eye(len(z), dtype=torch.bool)
        sim = z @ z.T / self.temperature
        log_prob = sim - torch.logsumexp(sim.masked_fill(itself, float("-inf")), dim=1, keepdim=True)
        positive = (same & ~itself).float()
        per_anchor = (positive * log_prob).sum(1) / positive.sum(1)
        return -per_anchor.mean()


class LeafEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU(), nn.Flatten())
        self.project = nn.Linear(16 * 9, 16)

    def forward(self, image):
        return F.normalize(self.project(self.conv(image)), dim=-1)


def scan_cabinet(n_sheets=312, species=9, seed=27):
    """Sheets lie in the cabinet by the drawer: a drawer holds eight sheets of two to four species."""
    rng = np.random.default_rng(seed)
    shape = rng.normal(0, 1, (species + 2, SIDE, SIDE))
    sheets = []
    for drawer in range(n_sheets // 8):
        kinds = rng.choice(species, 3, replace=False)
        labels = np.repeat(kinds, [3, 3, 2])
        if drawer == 22:
            labels[-1] = species            # a type specimen, the only sheet of its species
        for k in labels:
            sheets.append((shape[k] + 0.8 * rng.normal(0, 1, (SIDE, SIDE)), int(k)))
    return sheets


def collate(sheets):
    images = torch.from_numpy(np.stack([s[0] for s in sheets])).float().unsqueeze(1)
    return {"image": images, "species": torch.tensor([s[1] for s in sheets])}


def main():
    set_seed(27)
    accelerator = Accelerator(gradient_accumulation_steps=3, cpu=True)
    model = LeafEncoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    loader = DataLoader(scan_cabinet(), batch_size=8, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    criterion = SupConLoss()

    running, step = [], 0
    for batch in loader:
        with accelerator.accumulate(model):
            loss = criterion(model(batch["image"]), batch["species"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        running.append(loss.item())
        if accelerator.sync_gradients:
            step += 1
            accelerator.print(f"step {step} supcon {sum(running) / len(running):.5f}")
            running.clear()
    weights = accelerator.unwrap_model(model).parameters()
    print("finite", int(all(p.isfinite().all() for p in weights)))


if __name__ == "__main__":
    main()
