"""Stage 1 of a LLaVA-like model for scanned recipe cards: frozen patch encoder, frozen language model, a two-layer
projector is all that learns. <image> is expanded to one placeholder per patch before the text is cut to the context."""
from typing import List, NamedTuple

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(66)
IMG, PAD, VOCAB, CTX = 1, 0, 64, 48
PATCHES, VIS, TXT = 16, 20, 32


class Card(NamedTuple):
    pixels: torch.Tensor       # n_images, 1, 16, 16
    ids: List[int]


class PatchEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, VIS, 4, stride=4)

    def forward(self, px):
        return torch.tanh(self.conv(px)).flatten(2).transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, TXT, padding_idx=PAD)
        self.rnn = nn.GRU(TXT, TXT, batch_first=True)
        self.lm_head = nn.Linear(TXT, VOCAB)

    def forward(self, embeds):
        return self.lm_head(self.rnn(embeds)[0])


class RecipeVLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.vision, self.text = PatchEncoder(), Decoder()
        self.projector = nn.Sequential(nn.Linear(VIS, TXT), nn.GELU(), nn.Linear(TXT, TXT))
        self.vision.requires_grad_(False)
        self.text.requires_grad_(False)

    def forward(self, ids, pixels):
        feats = self.projector(self.vision(pixels)).reshape(-1, TXT)
        embeds = self.text.embed_tokens(ids).clone()
        embeds[ids == IMG] = feats
        return self.text(embeds)


def expand(tokens):
    out = []
    for t in tokens:
        out += [IMG] * PATCHES if t == IMG else [t]
    return out[:CTX]


def archive(n, seed=4):
    g = torch.Generator().manual_seed(seed)

    def words(lo, hi):
        k = int(torch.randint(lo, hi, (1,), generator=g))
        return torch.randint(2, VOCAB, (k,), generator=g).tolist()

    for i in range(n):
        # front; a few cards have something written on the back, which is a second picture after the text
        tokens, sides = [IMG] + words(6, 12), 1
        if i % 10 == 7:
            tokens, sides = tokens + [IMG], 2
        if i == 67:
            tokens = [IMG] + words(22, 23) + [IMG]       # grandmother's stollen
        tokens += words(2, 6)
        yield Card(torch.rand(sides, 1, 16, 16, generator=g), expand(tokens))


def collate(cards):
    width = max(len(c.ids) for c in cards)
    ids = torch.tensor([c.ids + [PAD] * (width - len(c.ids)) for c in cards])
    return ids, torch.cat([c.pixels for c in cards])


def batches(cards, size):
    buf = []
    for c in cards:
        buf.append(c)
        if len(buf) == size:
            yield collate(buf)
            buf = []


model = RecipeVLM()
opt = torch.optim.AdamW(model.projector.parameters(), lr=2e-3)
for step, (ids, pixels) in enumerate(batches(archive(120), 4), 1):
    logits = model(ids, pixels)
    labels = ids.masked_fill((ids == IMG) | (ids == PAD), -100)
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step:02d}  loss {loss.item():.6f}  images {pixels.size(0)}", flush=True)
print("projector", sum(p.sum().item() for p in model.projector.parameters()))
