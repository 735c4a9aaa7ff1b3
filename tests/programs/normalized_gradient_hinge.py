#!/usr/bin/env python3
"""Normalised gradient descent (every step has length lr, Hazan et al. 2015) on a multi-class hinge loss."""
import dataclasses
import torch


@dataclasses.dataclass
class Config:
    lr: float = 0.1
    batch: int = 8
    steps: int = 24
    seed: int = 6


class Trainer:
    def __init__(self, model, cfg):
        self.model, self.cfg = model, cfg
        self.opt = torch.optim.SGD(model.parameters(), lr=cfg.lr)
        self.loss_fn = torch.nn.MultiMarginLoss()

    def unit_gradient(self):
        grads = [p.grad for p in self.model.parameters()]
        norm = torch.sqrt(sum((g * g).sum() for g in grads))
        for g in grads:
            g.div_(norm)
        return norm.item()

    def fit(self, sampler):
        for i in range(self.cfg.steps):
            x, y = sampler(self.cfg.batch)
            self.opt.zero_grad()
            loss = self.loss_fn(self.model(x), y)
            loss.backward()
            norm = self.unit_gradient()
            self.opt.step()
            print(f"{i + 1:>3} hinge {loss.item():.5f} |g| {norm:.5f}")


def make_sampler(seed):
    gen = torch.Generator().manual_seed(seed)
    centres = 4.0 * torch.randn(5, 12, generator=gen)

    def sample(n):
        y = torch.randint(0, 5, (n,), generator=gen)
        return centres[y] + 0.2 * torch.randn(n, 12, generator=gen), y

    return sample


if __name__ == "__main__":
    cfg = Config()
    torch.manual_seed(cfg.seed)
    net = torch.nn.Linear(12, 5)
    Trainer(net, cfg).fit(make_sampler(cfg.seed))
    print("final |W|", net.weight.detach().norm().item())
