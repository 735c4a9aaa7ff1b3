"""Field sketches and the notes beside them: a contrastive pair of towers with a learnable temperature, in bfloat16.

The temperature is learnt, and sharpened from outside by a quarter in each phase of the run.
"""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

SEED, STEPS, BATCH, SIDE, WORDS = 8, 40, 24, 12, 60
PHASE = 6


class Sketches(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(SEED)
        self.code = torch.randn(n, 6, generator=g)
        self.paint = torch.randn(6, SIDE * SIDE, generator=g)
        self.noise = 0.05 * torch.randn(n, SIDE * SIDE, generator=g)
        self.speak = torch.randn(6, 10 * WORDS, generator=g)

    def __len__(self):
        return len(self.code)

    def __getitem__(self, i):
        image = torch.tanh(self.code[i] @ self.paint + self.noise[i]).view(1, SIDE, SIDE)
        note = (self.code[i] @ self.speak).view(10, WORDS).argmax(1)
        return image, note


class SketchTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(1, 12, 3, padding=1), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(),
                                  nn.Linear(12 * 36, dim))

    def forward(self, x):
        return F.normalize(self.body(x).float(), dim=-1)


class NoteTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words = nn.Embedding(WORDS, 24)
        self.places = nn.Parameter(torch.randn(10, 24) * 0.5)
        self.mix = nn.Sequential(nn.Linear(240, 96), nn.GELU(), nn.Linear(96, dim))

    def forward(self, note):
        return F.normalize(self.mix((self.words(note) + self.places).flatten(1)).float(), dim=-1)


class TwoTowers(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.sketch = SketchTower(dim)
        self.note = NoteTower(dim)
        self.tau = nn.Parameter(torch.tensor(0.12))

    def forward(self, image, note, sharpening):
        similarity = self.sketch(image) @ self.note(note).T
        return similarity.float() / (self.tau * sharpening)

    @torch.no_grad()
    def keep_temperature_in_range(self):
        self.tau.clamp_(0.02, 0.5)


def main():
    random.seed(SEED)
    torch.manual_seed(SEED)
    loader = DataLoader(Sketches(STEPS * BATCH), batch_size=BATCH, shuffle=True, num_workers=1,
                        generator=torch.Generator().manual_seed(SEED))
    model = TwoTowers()
    towers = [p for n, p in model.named_parameters() if n != "tau"]
    optimizer = torch.optim.Adam([{"params": towers, "lr": 3e-3}, {"params": [model.tau], "lr": 4e-3}])
    truth = torch.arange(BATCH)
    for step, (image, note) in enumerate(loader, 1):
        sharpening = 1.0 - 0.25 * ((step - 1) // PHASE)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(image, note, sharpening)
        loss = 0.5 * (F.cross_entropy(logits, truth) + F.cross_entropy(logits.T, truth))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        hits = (logits.argmax(1) == truth).float().mean()
        print(f"{step:2d} | loss {loss.item():.5f} | hits {hits.item():.3f} | tau {model.tau.item():.5f}", flush=True)
        optimizer.step()
        model.keep_temperature_in_range()
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
