"""Photo-to-description retrieval for a seed bank: a picture tower and a text tower, contrastive loss.

    torchrun --standalone --nproc_per_node 2 accelerate_two_towers_seed_packets.py
"""
import os
import warnings

os.environ.setdefault("DS_ACCELERATOR", "cpu")
warnings.filterwarnings("ignore")

import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

CONFIG = dict(dim=16, vocab=200, pad=0, max_words=9, batch=8, accum=2, lr=2e-3, packets=320, temperature=0.1)


def packets(cfg):
    """(photo, words) of each packet. Photos are 8x8 greyscale thumbnails of the seed on graph paper."""
    g = torch.Generator().manual_seed(77)
    species = torch.randn(20, 64, generator=g)
    for number in range(cfg["packets"]):
        kind = int(torch.randint(20, (1,), generator=g))
        photo = (species[kind] + 0.5 * torch.randn(64, generator=g)).view(1, 8, 8)
        n_words = int(torch.randint(3, cfg["max_words"] + 1, (1,), generator=g))
        words = torch.randint(21, cfg["vocab"], (cfg["max_words"],), generator=g)
        words[0] = kind + 1
        words[n_words:] = cfg["pad"]
        if number == 171:                # label lost when the envelope got wet
            words[:] = cfg["pad"]
        yield photo, words


class PhotoTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.body = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.proj = nn.Linear(64, dim)

    def forward(self, photo):
        h = F.relu(self.body(F.relu(self.stem(photo))))
        return self.proj(h.flatten(1))


class TextTower(nn.Module):
    """Mean over the words that are there, then a projection without a bias."""

    def __init__(self, vocab, dim, pad):
        super().__init__()
        self.pad = pad
        self.table = nn.Embedding(vocab, 32, padding_idx=pad)
        self.proj = nn.Linear(32, dim, bias=False)

    def forward(self, words):
        there = (words != self.pad).unsqueeze(-1).float()
        bag = (self.table(words) * there).sum(1) / there.sum(1).clamp(min=1.0)
        return self.proj(bag)


def unit(z, eps=1e-6):
    length = torch.sqrt((z * z).sum(-1, keepdim=True))
    return z / (length + eps)


def info_nce(photo_z, text_z, temperature):
    sims = unit(photo_z) @ unit(text_z).T / temperature
    target = torch.arange(len(sims))
    return 0.5 * (F.cross_entropy(sims, target) + F.cross_entropy(sims.T, target))


def main(cfg):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=cfg["accum"])
    set_seed(5)
    photo_tower = PhotoTower(cfg["dim"])
    text_tower = TextTower(cfg["vocab"], cfg["dim"], cfg["pad"])
    optimizer = torch.optim.AdamW([
        {"params": photo_tower.parameters()},
        {"params": text_tower.parameters(), "lr": 5 * cfg["lr"]},
    ], lr=cfg["lr"], weight_decay=0.05)
    loader = DataLoader(list(packets(cfg)), batch_size=cfg["batch"])
    photo_tower, text_tower, optimizer, loader = accelerator.prepare(photo_tower, text_tower, optimizer, loader)

    update, window = 0, []
    for photo, words in loader:
        with accelerator.accumulate(photo_tower, text_tower):
            loss = info_nce(photo_tower(photo), text_tower(words), cfg["temperature"])
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        window.append(accelerator.gather(loss.detach().reshape(1)).mean().item())
        if accelerator.sync_gradients:
            update += 1
            accelerator.print(f"update {update:2d}  nce {sum(window) / len(window):.6f}", flush=True)
            window.clear()

    total = 0.0
    for tower in (photo_tower, text_tower):
        total += sum(p.detach().double().sum().item() for p in accelerator.unwrap_model(tower).parameters())
    accelerator.print(f"sum of both towers {total:.6f}", flush=True)
    accelerator.end_training()


if __name__ == "__main__":
    main(CONFIG)
