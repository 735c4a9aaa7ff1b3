"""Captions for tattoo flash sheets (toy drawings). Scheduled sampling: the decoder gets its own words more often."""

import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, EOS = 0, 1, 2
WORDS = ["<pad>", "<s>", "</s>", "bold", "fine", "cross", "ring", "bar", "box", "left", "right", "above", "a"]
SHAPES = ["cross", "ring", "bar", "box"]


def draw(kind, x, y, heavy):
    img = torch.zeros(16, 16)
    ink = 1.0 if heavy else 0.5
    if kind == "cross":
        img[x + 2, y : y + 5] = ink
        img[x : x + 5, y + 2] = ink
    elif kind == "ring":
        img[x : x + 5, y : y + 5] = ink
        img[x + 1 : x + 4, y + 1 : y + 4] = 0
    elif kind == "bar":
        img[x + 1 : x + 3, y : y + 5] = ink
    else:
        img[x : x + 4, y : y + 4] = ink
    return img


def sheet(gen, n, captioned=True):
    """A batch of drawings; sheets from the estate sale carry no captions at all."""
    images, rows, kinds = [], [], []
    for _ in range(n):
        k, x, y, h = (int(torch.randint(0, m, (1,), generator=gen)) for m in (4, 11, 11, 2))
        images.append(draw(SHAPES[k], x, y, h) + 0.05 * torch.randn(16, 16, generator=gen))
        text = ["a", "bold" if h else "fine", SHAPES[k], "left" if y < 6 else "right"] + (["above"] if x < 4 else [])
        ids = [WORDS.index(w) for w in text] + [EOS]
        rows.append(torch.tensor(ids + [PAD] * (6 - len(ids))) if captioned else torch.zeros(6, dtype=torch.long))
        kinds.append(k)
    return torch.stack(images)[:, None], torch.stack(rows), torch.tensor(kinds)


class Eye(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a = nn.Conv2d(1, 8, 3, stride=2, padding=1)
        self.b = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.out = nn.Linear(16 * 16, width)

    def forward(self, x):
        return torch.tanh(self.out(F.relu(self.b(F.relu(self.a(x)))).flatten(1)))


class Voice(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words = nn.Embedding(len(WORDS), width, padding_idx=PAD)
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, len(WORDS))

    def forward(self, h, targets, teacher_ratio, dice):
        word = torch.full((len(h),), BOS)
        never = torch.zeros(len(WORDS)).index_fill(0, torch.tensor([PAD, BOS]), float("-inf"))
        steps = []
        for t in range(targets.shape[1]):
            h = self.cell(self.words(word), h)
            logits = self.out(h)
            steps.append(logits)
            with torch.no_grad():
                u = torch.rand(logits.shape, generator=dice)
                own = (logits.float() + never - torch.log(-torch.log(u))).argmax(dim=1)
                teach = torch.rand(len(h), generator=dice) < teacher_ratio
                word = torch.where(teach, targets[:, t], own)
        return torch.stack(steps, dim=1)


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("--batches", type=int, default=46)
    p.add_argument("--width", type=int, default=32)
    p.add_argument("--seed", type=int, default=9)
    return p.parse_args()


def main():
    args = parse()
    torch.manual_seed(args.seed)
    data, dice = torch.Generator().manual_seed(100), torch.Generator().manual_seed(200)
    eye, voice = Eye(args.width), Voice(args.width)
    opt_eye = torch.optim.SGD(eye.parameters(), lr=0.05, momentum=0.8)
    opt_voice = torch.optim.Adam(voice.parameters(), lr=8e-3)
    for i in range(1, args.batches + 1):
        images, caps, kinds = sheet(data, 12, captioned=i not in (7, 19, 33))
        # the ratio drops in three stairs, and the loss jumps with each of them
        ratio = 1.0 if i <= 15 else 0.6 if i <= 30 else 0.1
        logits = voice(eye(images), caps, ratio, dice)
        loss = F.cross_entropy(logits.flatten(0, 1), caps.flatten(), ignore_index=PAD)
        if not bool((caps != PAD).any()):
            print(f"batch {i} has no captions, loss {loss.item()}, left out", flush=True)
            continue
        opt_eye.zero_grad()
        opt_voice.zero_grad()
        loss.backward()
        opt_eye.step()
        opt_voice.step()
        guess = logits[:, 2].detach().argmax(1)
        hit = (guess == caps[:, 2]).float()
        ring = hit[(kinds == 1) & (images.amax((1, 2, 3)) < 0.7)].mean()  # nan where the sheet shows no fine ring
        print(
            f"batch {i} ratio {ratio:.1f} loss {loss.item():.7f} shape {hit.mean().item():.3f}",
            f"fine-ring {ring.item():.3f}",
            flush=True,
        )
    total = sum(p.detach().abs().sum().item() for m in (eye, voice) for p in m.parameters())
    print(f"weights {total:.5f}", flush=True)


if __name__ == "__main__":
    main()
