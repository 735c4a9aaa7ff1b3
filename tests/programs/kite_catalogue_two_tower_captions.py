# Contrastive adaptation of an image tower and a caption tower on a shop's kite catalogue.
import re

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

SHAPES = ["delta", "diamond", "box", "rokkaku", "sled", "parafoil"]
COLOURS = ["red", "blue", "yellow", "black", "green"]
EXTRAS = ["with", "long", "tail", "two", "line", "for", "light", "wind", "children", "stunt"]
WORDS = {w: i + 1 for i, w in enumerate(SHAPES + COLOURS + EXTRAS)}
SKU = re.compile(r"[A-Z]{2}-\d+")


class Catalogue(Dataset):
    def __init__(self, n=384, seed=5):
        g = torch.Generator().manual_seed(seed)
        r = lambda k: int(torch.randint(0, k, (1,), generator=g))
        self.rows = []
        for i in range(n):
            s, c = r(len(SHAPES)), r(len(COLOURS))
            words = [COLOURS[c], SHAPES[s]] + [EXTRAS[r(len(EXTRAS))] for _ in range(r(5))]
            text = f"KT-{1000 + i} " + " ".join(words)
            if i == 217:
                text = f"KT-{1000 + i}"          # the copywriter has only entered the article number
            pic = torch.randn(3, 16, 16, generator=g) * 0.4
            pic[c % 3] += 0.5 + 0.2 * c
            pic[:, s * 2:s * 2 + 4] += 1.0
            self.rows.append((pic, text))

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i]


def tokenise(text, limit=8):
    words = SKU.sub("", text).lower().split()
    return [WORDS[w] for w in words if w in WORDS][:limit]


def collate(rows):
    ids = torch.zeros(len(rows), 8, dtype=torch.long)
    for k, (_, text) in enumerate(rows):
        t = tokenise(text)
        ids[k, :len(t)] = torch.tensor(t, dtype=torch.long)
    return torch.stack([p for p, _ in rows]), ids


class ImageTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.patch = nn.Conv2d(3, 32, 4, 4)
        self.mix = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.out = nn.Linear(32, dim)

    def forward(self, x):
        return self.out(self.mix(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


class TextTower(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, 32, padding_idx=0)
        self.ff = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.out = nn.Linear(32, dim)

    def forward(self, ids):
        keep = (ids != 0).unsqueeze(-1).float()
        h = self.emb(ids)
        h = h + self.ff(h)
        pooled = (h * keep).sum(1) / keep.sum(1)
        return self.out(pooled)


class Pair(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.image = ImageTower(dim)
        self.text = TextTower(len(WORDS) + 1, dim)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pics, ids):
        a = F.normalize(self.image(pics), dim=-1)
        b = F.normalize(self.text(ids), dim=-1)
        logits = self.log_scale.clamp(max=4.0).exp() * a @ b.T
        y = torch.arange(len(a))
        return 0.5 * (F.cross_entropy(logits, y) + F.cross_entropy(logits.T, y))


def main():
    set_seed(23)
    acc = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = Pair()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    loader = DataLoader(Catalogue(), batch_size=8, shuffle=False, collate_fn=collate)
    model, opt, loader = acc.prepare(model, opt, loader)
    done, total = 0, 0.0
    for pics, ids in loader:
        with acc.accumulate(model):
            loss = model(pics, ids)
            acc.backward(loss)
            total += loss.item() / 2
            if acc.sync_gradients:
                acc.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            opt.zero_grad()
        if acc.sync_gradients:
            done += 1
            acc.print(f"{done:02d} contrastive {total:.6f}", flush=True)
            total = 0.0
    acc.print("size of weights", sum(p.abs().sum() for p in model.parameters()).item(), flush=True)


main()
