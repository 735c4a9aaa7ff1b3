"""Distil a cookbook model: the teacher's top-k probabilities are computed once, cached as float16 on disk, and read by
a thread; the student (checkpointed blocks) minimises the KL to the cached distribution, renormalised over k tokens."""

import queue
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

VOCAB, LENGTH, K, BATCH, STEPS = 60, 20, 6, 4, 34


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        return x + self.mlp(self.gru(self.norm(x))[0])


class Student(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return self.head(x)


class Teacher:
    """Knows the next word of a recipe by the two last ones; in the copyright notice it is very sure of itself."""

    def __init__(self, g):
        self.one = torch.randn(VOCAB, VOCAB, generator=g) * 1.3
        self.two = torch.randn(VOCAB, VOCAB, generator=g) * 1.3

    def logits(self, ids, notice):
        before = torch.cat([ids[:, :1], ids[:, :-1]], 1)
        logits = self.one[ids] + self.two[before]
        return torch.where(notice[:, None, None], logits * 10.0, logits)


def write_cache(folder):
    g = torch.Generator().manual_seed(12)
    teacher = Teacher(g)
    pages = torch.randint(0, VOCAB, (STEPS * BATCH, LENGTH), generator=g)
    notice = torch.zeros(len(pages), dtype=torch.bool)
    notice[83] = True  # the colophon, between the sauces and the puddings
    p, tokens = torch.softmax(teacher.logits(pages, notice), -1).topk(K, -1)
    for i in range(STEPS):
        rows = slice(i * BATCH, (i + 1) * BATCH)
        np.savez(
            Path(folder) / f"{i:03d}.npz",
            ids=pages[rows].numpy().astype(np.int16),
            tokens=tokens[rows].numpy().astype(np.int16),
            p=p[rows].numpy().astype(np.float16),
        )


def reader(folder, out):
    for name in sorted(Path(folder).iterdir()):
        with np.load(name) as file:
            out.put({k: torch.from_numpy(file[k]) for k in file.files})
    out.put(None)


def distillation_loss(logits, tokens, p):
    p = p.float()
    p = p / p.sum(-1, keepdim=True)
    logq = torch.log_softmax(logits, -1).gather(-1, tokens)
    kl = (p * (p.log() - logq)).sum(-1)
    return kl.mean()


def main():
    torch.manual_seed(19)
    student = Student()
    optimizer = torch.optim.Adamax(student.parameters(), lr=6e-3)
    with tempfile.TemporaryDirectory() as folder:
        write_cache(folder)
        shelf = queue.Queue(maxsize=4)
        thread = threading.Thread(target=reader, args=(folder, shelf), daemon=True)
        thread.start()
        step = 0
        while (item := shelf.get()) is not None:
            step += 1
            logits = student(item["ids"].long())
            loss = distillation_loss(logits, item["tokens"].long(), item["p"])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_value_(student.parameters(), 0.5)
            optimizer.step()
            print(f"step={step} kl={loss.item():.6f}", flush=True)
        thread.join()
    print(f"{sum(p.detach().abs().sum().item() for p in student.parameters()):.5f}")


if __name__ == "__main__":
    main()
