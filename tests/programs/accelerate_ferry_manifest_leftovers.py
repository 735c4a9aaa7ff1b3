"""Tags the words of ferry manifests. Accumulates gradients over micro-batches that hold different numbers of
labelled words; the window at the end of an epoch is shorter. Each window is normalised by its own word count."""
import math

import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader

TAGS = ["cargo", "port", "weight", "other"]
VOCAB, PAD, IGNORE = 60, 0, -100
MICRO, WINDOW, EPOCHS = 4, 4, 6


def manifests(n=70, seed=31):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        length = int(torch.randint(3, 15, (1,), generator=g))
        words = torch.randint(1, VOCAB, (length,), generator=g)
        tags = words % len(TAGS)
        if torch.rand(1, generator=g) < 0.35:
            tags = torch.full_like(tags, IGNORE)      # scanned, but no clerk has tagged it
        rows.append((words, tags))
    for i in (20, 21, 22, 23):
        rows[i] = (rows[i][0], torch.full_like(rows[i][0], IGNORE))   # one micro-batch without any label
    return rows


def collate(rows):
    longest = max(len(w) for w, _ in rows)
    words = torch.full((len(rows), longest), PAD)
    tags = torch.full((len(rows), longest), IGNORE)
    for r, (w, t) in enumerate(rows):
        words[r, :len(w)], tags[r, :len(t)] = w, t
    return {"words": words, "tags": tags}


class Tagger(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim, padding_idx=PAD)
        self.attn = nn.MultiheadAttention(dim, 2, batch_first=True)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, len(TAGS))

    def forward(self, words):
        x = self.emb(words)
        bias = torch.zeros(words.shape).masked_fill(words == PAD, -math.inf)
        a, _ = self.attn(x, x, x, key_padding_mask=bias, need_weights=False)
        return self.out(self.norm(x + a))


def windows(loader, size):
    """Groups micro-batches; the last group of an epoch has what is left over."""
    group = []
    for batch in loader:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def main():
    set_seed(12)
    acc = Accelerator(cpu=True)
    net = Tagger()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-3)
    loader = DataLoader(manifests(), batch_size=MICRO, collate_fn=collate)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=40)
    net, opt, loader, sched = acc.prepare(net, opt, loader, sched)
    plain = nn.CrossEntropyLoss(ignore_index=IGNORE)
    summed = nn.CrossEntropyLoss(ignore_index=IGNORE, reduction="sum")
    step = 0
    for epoch in range(EPOCHS):
        for group in windows(loader, WINDOW):
            words_in_window = sum(int((b["tags"] != IGNORE).sum()) for b in group)
            if words_in_window == 0:
                continue
            total, means = 0.0, []
            for b in group:
                logits = net(b["words"]).flatten(0, 1)
                tags = b["tags"].flatten()
                with torch.no_grad():
                    means.append(plain(logits, tags).item())      # for the eye only: nan without labels
                loss = summed(logits, tags) / words_in_window
                acc.backward(loss)
                total += loss.item()
            acc.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            sched.step()
            opt.zero_grad()
            step += 1
            acc.print(f"epoch {epoch} step {step} micro {len(group)} words {words_in_window} loss {total:.6f} "
                      f"micro means {' '.join('%.4f' % m for m in means)}", flush=True)
    acc.print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
