"""Duration predictor for text-to-speech: for every phoneme a distribution over frame counts."""
import argparse

import torch
from torch import nn

PHONES = ["sil", "a", "e", "i", "o", "u", "m", "n", "s", "k", "r", "l"]
MEAN_FRAMES = torch.tensor([9.0, 7, 6, 5, 7, 6, 5, 5, 8, 6, 4, 4])


def utterance(rng, index):
    length = int(torch.randint(6, 14, (1,), generator=rng))
    ids = torch.randint(1, len(PHONES), (length,), generator=rng)
    ids[0] = ids[-1] = 0
    tempo = 7.0 if index == 66 else 0.85 + 0.3 * float(torch.rand(1, generator=rng))  # one slow demonstration
    frames = tempo * (MEAN_FRAMES[ids] + torch.randn(length, generator=rng))
    return ids, frames.round().clamp(min=1).long(), tempo


def collate(items):
    n = max(len(i) for i, _, _ in items)
    ids = torch.zeros(len(items), n, dtype=torch.long)
    frames = torch.zeros(len(items), n, dtype=torch.long)
    mask = torch.zeros(len(items), n, dtype=torch.bool)
    for row, (i, f, _) in enumerate(items):
        ids[row, : len(i)], frames[row, : len(f)], mask[row, : len(i)] = i, f, True
    return ids, frames, mask, torch.tensor([t for _, _, t in items])


class DurationPredictor(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.phones = nn.Embedding(len(PHONES), width)
        self.conv = nn.Conv1d(width, width, 3, padding=1)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 2)

    def forward(self, ids, tempo):
        h = self.phones(ids)
        h = torch.relu(self.conv(h.mT).mT)
        centre, spread = self.head(self.norm(h)).unbind(-1)
        tempo = tempo[:, None]
        return tempo * (6 + 4 * centre), tempo * 2.5 * torch.exp(0.3 * torch.tanh(spread))


def histogram_loss(centre, spread, frames, mask):
    bins = torch.arange(1, int(frames.max()) + 1)
    score = -0.5 * ((bins - centre[..., None]) / spread[..., None]) ** 2
    prob = torch.softmax(score, dim=-1)
    wanted = (bins == frames[..., None]).float()
    ce = -torch.special.xlogy(wanted, prob).sum(-1)
    return ce[mask].mean()


def train(args):
    rng = torch.Generator().manual_seed(args.seed)
    torch.manual_seed(args.seed)
    corpus = [utterance(rng, i) for i in range(args.steps * args.batch)]
    model = DurationPredictor()
    opt = torch.optim.AdamW(model.parameters(), lr=4e-3)
    for step in range(args.steps):
        ids, frames, mask, tempo = collate(corpus[step * args.batch : (step + 1) * args.batch])
        centre, spread = model(ids, tempo)
        loss = histogram_loss(centre, spread, frames, mask)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"step={step + 1} nats_per_phone={loss.item():.4f} longest={int(frames.max())}")
    print("weight energy", sum((p.detach() ** 2).sum() for p in model.parameters()).item())


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=32)
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seed", type=int, default=9)
    train(p.parse_args())
