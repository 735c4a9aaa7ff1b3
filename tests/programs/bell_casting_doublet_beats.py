"""Beat rates of the partial doublets of church bells, from the ovality of the casting.

A bell that is not quite round splits every partial into two; the pair beats ("warbles").
Six lathe readings per bell (differences of wall thickness across the rim, in tenths of a
millimetre) -> beats per second of hum, prime, tierce, quint and nominal.
"""
import torch
from torch import nn

PARTIALS = ["hum", "prime", "tierce", "quint", "nominal"]


class Foundry:
    """The order book: bells in the order in which they left the pit."""

    def __init__(self, bells=144, seed=41):
        g = torch.Generator().manual_seed(seed)
        self.readings = torch.randn(bells, 6, generator=g) * 1.4
        # this one was turned on the lathe until no gauge moved any more
        self.readings[67] = 0.0
        a = torch.randn(6, 5, generator=g) * 0.5
        b = torch.randn(6, 5, generator=g) * 0.5
        c, s = self.readings @ a, self.readings @ b
        self.beats = (c.square() + s.square()).sqrt() * (1 + 0.03 * torch.randn(bells, 5, generator=g))

    def lots(self, size):
        for start in range(0, len(self.readings), size):
            yield self.readings[start:start + size], self.beats[start:start + size]


class Splitting(nn.Module):
    def __init__(self):
        super().__init__()
        self.cosine = nn.Linear(6, len(PARTIALS), bias=False)
        self.sine = nn.Linear(6, len(PARTIALS), bias=False)

    def forward(self, readings):
        return torch.hypot(self.cosine(readings), self.sine(readings))


class Bell(nn.Module):
    def __init__(self):
        super().__init__()
        self.splitting = Splitting()
        self.height = nn.Parameter(torch.zeros(len(PARTIALS)))

    def forward(self, readings):
        return self.splitting(readings) * self.height.exp()


class Apprentice:
    def __init__(self):
        torch.manual_seed(7)
        self.bell = Bell()
        self.optimizer = torch.optim.NAdam(self.bell.parameters(), lr=0.03)
        self.seen = 0

    def learn(self, readings, beats):
        self.optimizer.zero_grad()
        loss = nn.functional.smooth_l1_loss(self.bell(readings), beats)
        loss.backward()
        self.optimizer.step()
        self.seen += 1
        print(f"lot {self.seen:2d}: off by {loss.item():.5f} beats/s")


if __name__ == "__main__":
    foundry, apprentice = Foundry(), Apprentice()
    for season in range(2):
        for lot in foundry.lots(8):
            apprentice.learn(*lot)
    weight = sum(p.detach().square().sum().item() for p in apprentice.bell.parameters())
    print("squared weights of the bell model", round(weight, 5))
