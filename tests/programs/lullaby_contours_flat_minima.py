# Lullaby, dance, lament or work song?  Melodic contours, a small network, and a penalty on the slope of the loss
# so that we end in a flat place (the idea of sharpness aware training, but with a penalty).
from dataclasses import dataclass

import torch
import torch.nn as nn


@dataclass
class Settings:
    contours: int = 24
    hidden: int = 20
    genres: int = 4
    batch: int = 6
    steps: int = 34
    lr: float = 0.08
    flat: float = 0.05
    seed: int = 7


class SongBook:
    def __init__(self, cfg):
        self.cfg = cfg
        self.gen = torch.Generator().manual_seed(cfg.seed)
        self.shape = 0.45 * torch.randn(cfg.genres, cfg.contours, generator=self.gen)

    def page(self):
        genre = torch.randint(0, self.cfg.genres, (self.cfg.batch,), generator=self.gen)
        song = self.shape[genre] + 0.9 * torch.randn(self.cfg.batch, self.cfg.contours, generator=self.gen)
        return song, genre


class Ear(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.listen = nn.Linear(cfg.contours, cfg.hidden)
        self.name = nn.Linear(cfg.hidden, cfg.genres)

    def forward(self, song):
        return self.name(torch.tanh(self.listen(song)))


def margin_loss(score, genre):
    own = score.gather(1, genre[:, None])
    wrong = torch.ones_like(score).scatter(1, genre[:, None], 0.0)
    return ((1.0 - own + score).clamp(min=0) * wrong).sum(1).mean()


class Fitter:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        self.cfg, self.book, self.ear = cfg, SongBook(cfg), Ear(cfg)
        self.opt = torch.optim.SGD(self.ear.parameters(), lr=cfg.lr, momentum=0.8)

    def slope(self, loss):
        grads = torch.autograd.grad(loss, list(self.ear.parameters()), create_graph=True)
        squares = torch.stack([(g * g).sum() for g in grads])
        return torch.sqrt(squares.sum())

    def fit(self):
        for step in range(1, self.cfg.steps + 1):
            song, genre = self.book.page()
            loss = margin_loss(self.ear(song), genre)
            slope = self.slope(loss)
            self.opt.zero_grad()
            (loss + self.cfg.flat * slope).backward()
            self.opt.step()
            print("step", step, "margin %.5f" % loss.item(), "slope %.5f" % slope.item())
        return self.ear


if __name__ == "__main__":
    ear = Fitter(Settings()).fit()
    print("weights, absolute sum: %.5f" % sum(p.abs().sum().item() for p in ear.parameters()))
