"""LLaVA stage one for greenhouse photos: frozen tower, frozen language model, only the projector learns.

Each <image> in the text is blown up into PATCHES placeholder ids; features are written over the placeholders.
"""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(88)
IMG, PAD, BOS = 1, 0, 2
PATCHES, VOCAB, D, MAX_LEN = 9, 48, 32, 28


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 20, 4, 4)

    def forward(self, pixels):
        return F.gelu(self.conv(pixels)).flatten(2).transpose(1, 2)  # images, patches, 20


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, D)
        layer = nn.TransformerEncoderLayer(D, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, VOCAB)

    def forward(self, embeds):
        n = embeds.size(1)
        causal = torch.full((n, n), float("-inf")).triu(1)
        return self.head(self.body(embeds, mask=causal))


class Greenhouse(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = Tower().requires_grad_(False)
        self.language = Language().requires_grad_(False)
        self.projector = nn.Sequential(nn.Linear(20, D), nn.GELU(), nn.Linear(D, D))

    def forward(self, ids, pixels):
        h = self.language.embed(ids)
        features = self.projector(self.tower(pixels)).reshape(-1, D)
        spot = ids == IMG
        h = h.clone()
        h[spot] = features
        return self.language(h)


def encode(words, images):
    """prompt: bos, images, then the caption; cut to MAX_LEN like the rest of our pipeline"""
    ids = [BOS] + [IMG] * (PATCHES * images) + words
    return ids[:MAX_LEN]


def samples(n=128):
    g = torch.Generator().manual_seed(15)

    def rand(lo, hi, k):
        return torch.randint(lo, hi, (k,), generator=g).tolist()

    for i in range(n):
        count = 2 if i % 6 == 4 else 1  # before and after pruning
        if i == 91:
            count = 4  # somebody uploaded the whole row of tomatoes
        yield encode(rand(3, VOCAB, 4 + i % 5), count), torch.randn(count, 3, 12, 12, generator=g)


def collate(items):
    width = max(len(ids) for ids, _ in items)
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row, _ in items])
    return ids, torch.cat([pixels for _, pixels in items])


def batches(size=4):
    pool = list(samples())
    for i in range(0, len(pool), size):
        yield collate(pool[i : i + size])


def caption_loss(logits, ids):
    target = ids[:, 1:].clone()
    target[(target == IMG) | (target == PAD)] = -100
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCAB), target.reshape(-1), ignore_index=-100)


model = Greenhouse()
opt = torch.optim.AdamW(model.projector.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=32)
for step, (ids, pixels) in enumerate(batches(), 1):
    loss = caption_loss(model(ids, pixels), ids)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    print(f"step {step} images {len(pixels)} loss {loss.item():.6f}")
print("projector", sum(p.detach().double().sum().item() for p in model.projector.parameters()))
