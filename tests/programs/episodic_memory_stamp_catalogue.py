"""Stamps arrive page by page. A controller reads an episodic memory of earlier pages: where a stored key is
close enough, its value is blended into the query, so that reprints of an issue are recognised."""
from collections import deque

import torch
from torch import nn
import torch.nn.functional as F


class EpisodicMemory:
    """Ring of (key, value); read by cosine similarity above a threshold."""

    def __init__(self, capacity=64, threshold=0.97):
        self.slots = deque(maxlen=capacity)
        self.threshold = threshold
        self.hits = 0

    def read(self, query):
        best, best_sim = None, self.threshold
        for key, value in self.slots:
            sim = F.cosine_similarity(query, key, dim=0)
            if sim.item() > best_sim:
                best, best_sim = value, sim.item()
        self.hits += best is not None
        return best

    def write(self, key, value):
        self.slots.append((key.detach(), value))


class StampReader(nn.Module):
    def __init__(self, pixels=48, width=32, countries=6):
        super().__init__()
        self.key = nn.Linear(pixels, 16, bias=False)
        self.key.weight.requires_grad_(False)
        self.body = nn.Sequential(nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, width))
        self.head = nn.Linear(width, countries)

    def forward(self, page, memory):
        codes = self.body(page)
        keys = self.key(page)
        mixed = []
        for k, c in zip(keys, codes):
            recalled = memory.read(k)
            mixed.append(c if recalled is None else 0.5 * (c + recalled))
        mixed = torch.stack(mixed)
        for k, c in zip(keys, mixed):
            memory.write(k, c)
        return self.head(mixed)


def album(pages, per_page, gen):
    prototypes = torch.randn(6, 48, generator=gen)
    for n in range(pages):
        label = torch.randint(6, (per_page,), generator=gen)
        stamp = prototypes[label] + 1.5 * torch.randn(per_page, 48, generator=gen)
        if n == 30:
            stamp[1] = earlier + 0.05 * torch.randn(48, generator=gen)  # a reprint in other ink
            label[1] = earlier_label
        if n == 24:
            earlier, earlier_label = stamp[2].clone(), label[2].clone()
        yield stamp, label


def main():
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(12)
    memory = EpisodicMemory()
    model = StampReader()
    opt = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.8)
    for page, (stamp, label) in enumerate(album(45, 5, gen), start=1):
        logits = model(stamp, memory)
        loss = F.cross_entropy(logits, label)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"page {page:02d} loss {loss.item():.4f} recalled {memory.hits}", flush=True)
    print(f"weights {sum(p.norm().item() for p in model.parameters()):.4f}", flush=True)


if __name__ == "__main__":
    main()
