"""Match photographs of cocktails with the text of their recipe cards: two towers, InfoNCE, learned temperature."""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

config = dict(steps=60, batch=24, width=32, words=80, length=9, lr=5e-2, temp_lr=1e-2, seed=1234)


class Bar:
    """A drink is a latent vector; it gives a picture (3 x 12 x 12) and a list of ingredients."""

    def __init__(self, cfg):
        g = torch.Generator().manual_seed(cfg["seed"])
        self.gen = g
        self.cfg = cfg
        self.paint = torch.randn(6, 3 * 12 * 12, generator=g)
        self.recipe = torch.randn(6, cfg["words"], generator=g)

    def batch(self):
        n = self.cfg["batch"]
        z = torch.randn(n, 6, generator=self.gen)
        image = torch.tanh(z @ self.paint + 0.2 * torch.randn(n, 432, generator=self.gen)).view(n, 3, 12, 12)
        words = (z @ self.recipe + 0.2 * torch.randn(n, self.cfg["words"], generator=self.gen))
        return image, words.topk(self.cfg["length"], -1).indices


class ImageTower(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, stride=4)
        self.mix = nn.Sequential(nn.LayerNorm(9 * width), nn.Linear(9 * width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x):
        return self.mix(self.patch(x).flatten(1))


class CardTower(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.bag = nn.EmbeddingBag(words, width, mode="mean")
        self.mix = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, ids):
        return self.mix(self.bag(ids))


class TwoTowers(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.image = ImageTower(cfg["width"])
        self.card = CardTower(cfg["words"], cfg["width"])
        self.temperature = nn.Parameter(torch.tensor(0.07))

    def forward(self, image, ids):
        a = F.normalize(self.image(image), dim=-1)
        b = F.normalize(self.card(ids), dim=-1)
        return a @ b.t() / self.temperature


def info_nce(logits):
    target = torch.arange(len(logits))
    return 0.5 * (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target))


def retrieval(logits):
    return (logits.argmax(1) == torch.arange(len(logits))).float().mean().item()


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg["seed"])
        self.cfg = cfg
        self.bar = Bar(cfg)
        self.model = TwoTowers(cfg)
        towers = [p for n, p in self.model.named_parameters() if n != "temperature"]
        self.opt = torch.optim.SGD([
            {"params": towers, "lr": cfg["lr"], "momentum": 0.9, "nesterov": True},
            {"params": [self.model.temperature], "lr": cfg["temp_lr"], "momentum": 0.9},
        ])
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, [self.warm, self.warm])

    @staticmethod
    def warm(i):
        return min(1.0, (i + 1) / 20)

    def bound_temperature(self):
        # as in the paper: never scale the logits by more than 100
        with torch.no_grad():
            self.model.temperature.clamp_(0, math.log(100))

    def step(self, i):
        image, ids = self.bar.batch()
        logits = self.model(image, ids)
        loss = info_nce(logits)
        self.opt.zero_grad()
        loss.backward()
        gnorm = nn.utils.clip_grad_norm_(self.model.parameters(), 2.0)
        print(f"step {i} loss {loss.item():.6f} top1 {retrieval(logits.detach()):.3f} grad {gnorm.item():.5f} "
              f"T {self.model.temperature.item():.6f}", flush=True)
        self.opt.step()
        self.bound_temperature()
        self.sched.step()

    def fit(self):
        for i in range(1, self.cfg["steps"] + 1):
            self.step(i)
        print(sum(p.detach().abs().sum().item() for p in self.model.parameters()), flush=True)


if __name__ == "__main__":
    Trainer(config).fit()
