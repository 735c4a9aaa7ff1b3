#!/usr/bin/env python
"""Diaries of glacier walkers, one micro-batch per walker; loss per supervised token of the whole accumulation window.

Pages that nobody has transcribed are -100 throughout. Their micro-loss is exactly zero (a sum over nothing), their own
perplexity does not exist (NaN in the table), and a window without any transcribed page is not stepped at all.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclass
class Config:
    vocab: int = 40
    length: int = 16
    micro: int = 3
    window: int = 4
    steps: int = 30
    width: int = 32
    lr: float = 5e-3
    seed: int = 13


class Diaries(Dataset):
    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg.seed)
        n = cfg.steps * cfg.window * cfg.micro
        step = torch.randint(1, 4, (n, 1), generator=g)
        first = torch.randint(0, cfg.vocab, (n, 1), generator=g)
        self.ids = (first + step * torch.arange(cfg.length)) % cfg.vocab
        self.labels = self.ids.clone()
        page = torch.arange(n) // cfg.micro
        untranscribed = (page % 7 == 3) | ((page >= 44) & (page < 48)) | ((page >= 88) & (page < 92))
        self.labels[untranscribed] = -100
        cut = torch.randint(4, cfg.length, (n, 1), generator=g)
        self.labels[torch.arange(cfg.length) >= cut] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, i):
        return self.ids[i], self.labels[i]


class DiaryModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.width)
        self.rnn = nn.LSTM(cfg.width, cfg.width, 2, batch_first=True)
        self.norm = nn.LayerNorm(cfg.width)
        self.head = nn.Linear(cfg.width, cfg.vocab)

    def forward(self, ids):
        return self.head(self.norm(self.rnn(self.tok(ids))[0]))


def windows(loader, size):
    batch = []
    for item in loader:
        batch.append(item)
        if len(batch) == size:
            yield batch
            batch = []


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=cfg.window)
    model = DiaryModel(cfg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Diaries(cfg), batch_size=cfg.micro))

    done = 0
    for number, window in enumerate(windows(loader, cfg.window), 1):
        tokens = sum((labels[:, 1:] != -100).sum() for _, labels in window)
        if tokens == 0:
            print(f"window {number} has no transcribed page, skipped", flush=True)
            continue
        total, table = 0.0, []
        for i, (ids, labels) in enumerate(window):
            accelerator.gradient_state._set_sync_gradients(i == len(window) - 1)
            logits = model(ids)
            targets = labels[:, 1:].flatten()
            summed = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets, ignore_index=-100, reduction="sum")
            accelerator.backward(summed * cfg.window / tokens)          # backward divides by the window again
            total += summed.item()
            table.append(torch.exp(summed.detach() / (targets != -100).sum()).item())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        print(f"window {number} tokens {int(tokens)} loss {total / int(tokens):.6f} perplexities "
              + " ".join(f"{x:.3f}" for x in table), flush=True)
    print(f"{done} steps, weights {sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
