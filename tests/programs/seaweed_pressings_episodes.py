"""Prototypical network for pressed seaweeds: a few sheets of each species, named after their nearest prototype."""
import torch
from torch import nn

WAYS, SHOTS, QUERIES = 4, 3, 4


def herbarium(seed=0):
    g = torch.Generator().manual_seed(seed)
    sheets_per_species = [14, 9, 11, 16, 8, 12, 10, 5, 13, 9]
    cabinet = {}
    for species, count in enumerate(sheets_per_species):
        frond = torch.randn(24, generator=g)
        cabinet[species] = frond + 0.8 * torch.randn(count, 24, generator=g)
    return cabinet


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(24, 32)
        self.second = nn.Linear(32, 10)
        self.sharpness = nn.Parameter(torch.tensor(0.0))

    def forward(self, sheets):
        return self.second(torch.relu(self.first(sheets)))


class Episodes:
    """Species of the collection in a weekly rota; the rarer cabinets are opened from the third week on."""

    def __init__(self, cabinet, seed):
        self.cabinet, self.g, self.week = cabinet, torch.Generator().manual_seed(seed), 0

    def __iter__(self):
        return self

    def __next__(self):
        self.week += 1
        opened = 7 if self.week < 15 else len(self.cabinet)
        ways = torch.randperm(opened, generator=self.g)[:WAYS].tolist()
        drawn = []
        for species in ways:
            sheets = self.cabinet[species]
            order = torch.randperm(len(sheets), generator=self.g)
            drawn.append(sheets[order[:SHOTS + QUERIES]])
        episode = torch.stack(drawn)
        return episode[:, :SHOTS], episode[:, SHOTS:]


def episode_loss(net, support, query):
    prototypes = net(support).mean(dim=1)
    found = net(query).flatten(0, 1)
    score = -torch.cdist(found, prototypes) * net.sharpness.exp()
    truth = torch.arange(WAYS).repeat_interleave(QUERIES)
    return nn.functional.cross_entropy(score, truth), (score.argmax(1) == truth).float().mean()


def main():
    torch.manual_seed(1)
    net = Embedding()
    optimizer = torch.optim.RAdam(net.parameters(), lr=5e-3)
    episodes = Episodes(herbarium(), seed=9)
    for number in range(1, 41):
        support, query = next(episodes)
        loss, named = episode_loss(net, support, query)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"episode {number}: loss {loss.item():.4f}, named {named.item():.0%}", flush=True)
    print("sum of squared weights", sum(p.detach().pow(2).sum().item() for p in net.parameters()))


if __name__ == "__main__":
    main()
