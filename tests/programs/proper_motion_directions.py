#!/usr/bin/env python
"""Predicts in which direction stars of a moving group travel over the sky; only the direction is scored."""
import argparse
import torch
import torch.nn as nn

MAS_PER_YEAR = 1.0
RAD_PER_SECOND = 1.536e-16      # one mas/yr


class Catalogue(torch.utils.data.Dataset):
    """Chunks of stars as the archives deliver them, each with the unit of its own header."""

    def __init__(self, chunks=26, stars=40):
        g = torch.Generator().manual_seed(1718)
        apex = torch.tensor([0.7, -0.4])
        self.items = []
        for k in range(chunks):
            sky = torch.randn(stars, 2, generator=g)
            colour = torch.rand(stars, 1, generator=g)
            motion = (apex - 0.3 * sky) * (4 + 2 * colour) + 0.3 * torch.randn(stars, 2, generator=g)
            unit = RAD_PER_SECOND if k == 13 else MAS_PER_YEAR
            self.items.append((torch.cat([sky, colour], 1), motion * unit, unit))

    def __len__(self):
        return len(self.items)

    def __getitem__(self, k):
        return self.items[k]


class GroupMotion(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.out = nn.Linear(hidden, 2)

    def forward(self, features, unit):
        return self.out(self.body(features)) * unit


def unit_vectors(motion):
    squared = motion.square().sum(-1, keepdim=True)
    return motion * torch.rsqrt(squared)


def main(args):
    torch.manual_seed(args.seed)
    model = GroupMotion(args.hidden)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=args.lr, momentum=0.5)
    loader = torch.utils.data.DataLoader(Catalogue(), batch_size=None, shuffle=False)
    for number, (features, motion, unit) in enumerate(loader, start=1):
        predicted = unit_vectors(model(features, unit))
        observed = unit_vectors(motion)
        loss = (1 - (predicted * observed).sum(-1)).mean()
        model.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"chunk {number:02d}: 1-cos = {loss.item():.7f}")
    print("final", torch.cat([w.detach().flatten() for w in model.parameters()]).abs().sum().item())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=4)
    main(parser.parse_args())
