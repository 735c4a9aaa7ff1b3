"""Two-tower recommender with a popularity discount; the listening totals are kept in a table of halves."""
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Settings:
    users: int = 20
    tracks: int = 30
    dim: int = 8
    batch: int = 32
    steps: int = 30
    lr: float = 0.05
    seed: int = 21
    sizes: dict = field(default_factory=dict)


class PopularityDiscount(nn.Module):
    def __init__(self, tracks):
        super().__init__()
        self.register_buffer("seconds", torch.ones(tracks, dtype=torch.float16))

    def forward(self, track, heard):
        if self.training:
            self.seconds.index_add_(0, track, heard.to(self.seconds.dtype))
        share = self.seconds / self.seconds.amax()
        return torch.log1p(share.float())


class Towers(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.user = nn.Embedding(s.users, s.dim)
        self.track = nn.Embedding(s.tracks, s.dim)
        self.discount = PopularityDiscount(s.tracks)

    def forward(self, user, track, heard):
        table = self.discount(track, heard)
        affinity = self.user(user) @ self.track.weight.T
        return affinity - table


class Sessions:
    """Skewed towards the first tracks, as listening is."""

    def __init__(self, s: Settings):
        self.s = s
        self.g = torch.Generator().manual_seed(s.seed)
        self.p = 1.0 / torch.arange(1, s.tracks + 1, dtype=torch.float32)

    def __iter__(self):
        for _ in range(self.s.steps):
            user = torch.randint(0, self.s.users, (self.s.batch,), generator=self.g)
            track = torch.multinomial(self.p, self.s.batch, True, generator=self.g)
            heard = torch.randint(180, 620, (self.s.batch,), generator=self.g)
            yield user, track, heard


def train(s: Settings):
    torch.manual_seed(s.seed)
    model = Towers(s).train()
    opt = torch.optim.Adagrad(model.parameters(), lr=s.lr)
    for i, (user, track, heard) in enumerate(Sessions(s), 1):
        loss = F.cross_entropy(model(user, track, heard), track)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"batch {i}: {loss.item()!r}")
    return model


if __name__ == "__main__":
    trained = train(Settings())
    print(sum(w.detach().double().sum().item() for w in trained.parameters()))
