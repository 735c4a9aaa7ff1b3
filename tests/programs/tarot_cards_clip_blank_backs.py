"""Contrastive image-text pretraining (CLIP, small) for a museum's collection of tarot decks.

python tarot_cards_clip_blank_backs.py --epochs 3 --batch-size 12
"""

import argparse
import logging
import math
import sys

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

logging.basicConfig(stream=sys.stdout, format="%(name)s | %(message)s", level=logging.INFO)
logger = logging.getLogger("tarot-clip")

SUITS = ["cups", "coins", "swords", "batons"]
WORDS = ["<pad>", "the", "of", "card", "deck", "marseille", "visconti"] + SUITS + [str(i) for i in range(1, 11)]
W2I = {w: i for i, w in enumerate(WORDS)}


class TarotScans(Dataset):
    """Scans as the museum delivers them: ink on white, inverted so that paper is 0 and ink is 1."""

    def __init__(self, n=180, size=16, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.items = []
        for i in range(n):
            suit, pip = int(torch.randint(4, (1,), generator=g)), int(torch.randint(1, 11, (1,), generator=g))
            ink = torch.zeros(1, size, size)
            rows = torch.randint(size - 2, (pip,), generator=g).tolist()
            for r in rows:
                c = 3 * suit + r % 4
                ink[0, r : r + 2, c : c + 2] = 0.5 + 0.5 * torch.rand(1, generator=g)
            caption = f"the {pip} of {SUITS[suit]} card {'marseille' if i % 2 else 'visconti'} deck"
            if i == 88:  # somebody scanned the protective sheet
                ink = torch.zeros_like(ink)
            self.items.append((ink, torch.tensor([W2I[w] for w in caption.split()])))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class InkEncoder(nn.Module):
    # no biases and no batch norm: the answer should scale with the ink
    def __init__(self, dim):
        super().__init__()
        self.stem = nn.Conv2d(1, 12, 4, stride=4, bias=False)
        self.mid = nn.Conv2d(12, 24, 2, stride=2, bias=False)
        self.proj = nn.Linear(24 * 4, dim, bias=False)

    def forward(self, x):
        x = F.relu(self.stem(x))
        x = F.relu(self.mid(x))
        return self.proj(x.flatten(1))


class CaptionEncoder(nn.Module):
    def __init__(self, dim, width=32):
        super().__init__()
        self.tok = nn.Embedding(len(WORDS), width)
        self.pos = nn.Parameter(torch.randn(7, width) * 0.02)
        self.block = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.proj = nn.Linear(width, dim, bias=False)

    def forward(self, ids):
        return self.proj(self.block(self.tok(ids) + self.pos).mean(1))


class CLIP(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.visual = InkEncoder(dim)
        self.text = CaptionEncoder(dim)
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, ids):
        image_features = self.visual(image)
        text_features = self.text(ids)
        image_features = image_features / image_features.norm(dim=1, keepdim=True)
        text_features = F.normalize(text_features, dim=1)
        return self.logit_scale.exp() * image_features @ text_features.t()


def clip_loss(logits):
    target = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


@torch.no_grad()
def recall_at_1(model, loader):
    hits = n = 0
    for image, ids in loader:
        hits += (model(image, ids).argmax(1) == torch.arange(len(image))).sum().item()
        n += len(image)
    return hits / n


def main(args):
    torch.manual_seed(args.seed)
    data = TarotScans()
    held_out = DataLoader(TarotScans(n=48, seed=99), batch_size=12)
    model = CLIP()
    opt = torch.optim.AdamW(
        [
            {"params": [p for n, p in model.named_parameters() if n != "logit_scale"], "weight_decay": 0.05},
            {"params": [model.logit_scale], "weight_decay": 0.0, "lr": args.lr * 0.5},
        ],
        lr=args.lr,
    )
    step = 0
    for epoch in range(args.epochs):
        loader = DataLoader(
            data, batch_size=args.batch_size, shuffle=True, generator=torch.Generator().manual_seed(args.seed + epoch)
        )
        for image, ids in loader:
            loss = clip_loss(model(image, ids))
            opt.zero_grad()
            loss.backward()
            opt.step()
            with torch.no_grad():
                model.logit_scale.clamp_(0, math.log(100))
            step += 1
            logger.info("step %d loss %.6f scale %.4f", step, loss.item(), model.logit_scale.exp().item())
        logger.info("epoch %d R@1 %.3f", epoch, recall_at_1(model, held_out))
    logger.info("parameter sum %.6f", sum(p.double().sum().item() for p in model.parameters()))


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--batch-size", type=int, default=12)
    p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--seed", type=int, default=3)
    main(p.parse_args())
