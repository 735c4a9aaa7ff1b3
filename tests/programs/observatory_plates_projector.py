"""Plate-LLaVA: a (very) small vision-language model that describes photographic plates of an observatory.

Stage 1 of LLaVA training: vision tower frozen and kept in half precision to save memory, language model frozen
except its norms, only the projector learns (plus norms).
"""
from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F

IGNORE_INDEX = -100
IMAGE_TOKENS = 16
VOCAB = ["<bos>", "<eos>", "a", "plate", "with", "faint", "bright", "comet", "cluster", "galaxy", "trail", "and", "no", "sky"]


@dataclass
class Args:
    steps: int = 36
    batch: int = 6
    lr: float = 4e-3
    seed: int = 20
    d_vision: int = 48
    d_text: int = 32


class Tower(nn.Module):
    """ViT-like; pretrained elsewhere with inputs in [0, 1]."""

    def __init__(self, d):
        super().__init__()
        self.patch_embed = nn.Linear(64, d)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.mlp_in, self.mlp_out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.norm = nn.LayerNorm(d)
        with torch.no_grad():                      # the pretrained tower has large outlier channels
            self.patch_embed.weight.mul_(6.0)
            self.mlp_in.weight[:8].mul_(400.0)

    def forward(self, patches):
        x = self.patch_embed(patches)
        x = x + F.relu(self.mlp_in(x)) @ self.mlp_out.weight.t() * 0.05
        return self.norm(x)


class Decoder(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.embed = nn.Embedding(len(VOCAB), d)
        self.pos = nn.Parameter(torch.randn(64, d) * 0.1)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
                                    for _ in range(2))
        self.head = nn.Linear(d, len(VOCAB))

    def forward(self, h):
        n = h.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)
        h = h + self.pos[:n]
        for layer in self.layers:
            h = layer(h, src_mask=mask)
        return self.head(h)


class PlateLlava(nn.Module):
    def __init__(self, a: Args):
        super().__init__()
        self.vision_tower = Tower(a.d_vision).half().requires_grad_(False).eval()
        self.mm_projector = nn.Sequential(nn.Linear(a.d_vision, a.d_text), nn.GELU(), nn.Linear(a.d_text, a.d_text))
        self.language_model = Decoder(a.d_text).requires_grad_(False)
        for name, p in self.language_model.named_parameters():
            if "norm" in name or "head" in name:
                p.requires_grad_(True)

    @torch.no_grad()
    def encode(self, images):
        patches = F.unfold(images, 8, stride=8).transpose(1, 2)
        return self.vision_tower(patches.half())

    def forward(self, images, ids, labels):
        img = self.mm_projector(self.encode(images).float())
        h = torch.cat([img, self.language_model.embed(ids)], dim=1)
        logits = self.language_model(h)[:, IMAGE_TOKENS:-1]
        return F.cross_entropy(logits.reshape(-1, len(VOCAB)), labels[:, 1:].reshape(-1), ignore_index=IGNORE_INDEX)


def plates(a: Args):
    """Yields batches. Plates come from two scanners: 8 bit (divided by 255) and 16 bit (divided by 65535)."""
    g = torch.Generator().manual_seed(a.seed)
    kinds = ["comet", "cluster", "galaxy", "trail"]
    number = 0
    while True:
        images, rows, labels = [], [], []
        for _ in range(a.batch):
            k = int(torch.randint(4, (1,), generator=g))
            sky = torch.randint(0, 40, (1, 32, 32), generator=g).float()
            sky[:, 8 * k:8 * k + 8, 4:28] += torch.randint(60, 200, (1, 8, 24), generator=g).float()
            number += 1
            if number % 29 == 0:
                raw = sky * 257.0
                bits = 8 if number == 116 else 16  # header of plate 116 lost in conversion
                img = raw / (2 ** bits - 1)
            else:
                img = sky / 255.0
            words = ["<bos>", "a", "plate", "with", "a", kinds[k], "<eos>"]
            ids = torch.tensor([VOCAB.index(w) for w in words])
            lab = ids.clone()
            lab[:4] = IGNORE_INDEX
            images.append(img); rows.append(ids); labels.append(lab)
        yield torch.stack(images), torch.stack(rows), torch.stack(labels)


def train(a: Args):
    torch.manual_seed(a.seed)
    model = PlateLlava(a)
    trainable = [p for p in model.parameters() if p.requires_grad]
    print(f"trainable {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())}")
    opt = torch.optim.AdamW(trainable, lr=a.lr)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, a.steps)
    for step, (images, ids, labels) in zip(range(1, a.steps + 1), plates(a)):
        loss = model(images, ids, labels)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        print(f"[{step:02d}] loss={loss.item():.6f}")
    print(f"sum of trainable weights {sum(p.double().sum().item() for p in trainable):.6f}")


if __name__ == "__main__":
    train(Args())
