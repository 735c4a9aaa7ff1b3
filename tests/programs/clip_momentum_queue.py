"""Image-text contrast with momentum towers and a queue of negatives (ALBEF/MoCo), on coloured shapes."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS = ["<pad>", "a", "red", "green", "blue", "square", "bar", "dot", "left", "right"]


class ImageTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.GELU(),
                                  nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.GroupNorm(4, 32), nn.GELU())
        self.proj = nn.Linear(32 * 16, dim)

    def forward(self, x):
        return F.normalize(self.proj(self.stem(x).flatten(1)), dim=-1)


class TextTower(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), 32, padding_idx=0)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.proj = nn.Linear(32, dim)

    def forward(self, ids):
        pad = ids == 0
        x = self.encoder(self.words(ids), src_key_padding_mask=pad)
        x = x.masked_fill(pad.unsqueeze(-1), -torch.inf).amax(1)          # max over the words that are there
        return F.normalize(self.proj(x), dim=-1)


class Queue:
    def __init__(self, size, dim):
        self.keys = torch.zeros(size, dim)
        self.filled = torch.zeros(size, dtype=torch.bool)
        self.at = 0

    def push(self, keys):
        where = (self.at + torch.arange(len(keys))) % len(self.keys)
        self.keys[where], self.filled[where] = keys, True
        self.at = (self.at + len(keys)) % len(self.keys)

    def logits(self, query, scale):
        return (scale * query @ self.keys.clone().T).masked_fill(~self.filled, -torch.inf)


class Contrast(nn.Module):
    def __init__(self, dim=24, size=512, momentum=0.95):
        super().__init__()
        self.image, self.text = ImageTower(dim), TextTower(dim)
        self.slow_image, self.slow_text = copy.deepcopy(self.image), copy.deepcopy(self.text)
        for p in [*self.slow_image.parameters(), *self.slow_text.parameters()]:
            p.requires_grad_(False)
        self.log_scale = nn.Parameter(torch.tensor(2.3))
        self.images, self.texts, self.momentum = Queue(size, dim), Queue(size, dim), momentum

    @torch.no_grad()
    def follow(self):
        for fast, slow in ((self.image, self.slow_image), (self.text, self.slow_text)):
            for p, s in zip(fast.parameters(), slow.parameters()):
                s.mul_(self.momentum).add_(p, alpha=1 - self.momentum)

    def forward(self, pixels, ids):
        with torch.no_grad():
            self.follow()
            ki, kt = self.slow_image(pixels), self.slow_text(ids)
        scale = self.log_scale.exp().clamp(max=100)
        qi, qt = self.image(pixels), self.text(ids)
        i2t = torch.cat([scale * (qi * kt).sum(-1, keepdim=True), self.texts.logits(qi, scale)], 1)
        t2i = torch.cat([scale * (qt * ki).sum(-1, keepdim=True), self.images.logits(qt, scale)], 1)
        target = torch.zeros(len(ids), dtype=torch.long)
        loss = (F.cross_entropy(i2t, target) + F.cross_entropy(t2i, target)) / 2
        self.images.push(ki)
        self.texts.push(kt)
        return loss


def draw(gen, n=16):
    pixels, ids = 0.05 * torch.randn(n, 3, 16, 16, generator=gen), torch.zeros(n, 5, dtype=torch.long)
    for i in range(n):
        colour, shape, side = (int(torch.randint(k, (1,), generator=gen)) for k in (3, 3, 2))
        h, w = [(6, 6), (12, 2), (2, 2)][shape]
        x = 1 + 8 * side
        pixels[i, colour, 2:2 + h, x:x + w] += 1
        words = [1, 2 + colour, 5 + shape] + ([8 + side] if i % 2 else [])
        ids[i, :len(words)] = torch.tensor(words)
    return pixels, ids


torch.manual_seed(1)
gen = torch.Generator().manual_seed(4)
model = Contrast()
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
for step in range(1, 31):
    loss = model(*draw(gen))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step} loss {loss.item():.5f} negatives {int(model.texts.filled.sum())}")
print("finite", int(all(p.isfinite().all() for p in model.parameters())))
