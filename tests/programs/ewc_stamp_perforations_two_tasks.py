"""Continual learning: first tell perforation gauges of stamps, then watermarks, without forgetting the gauges.
Elastic weight consolidation with a diagonal Fisher, scaled per tensor so that lambda means the same for every layer."""
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass
class Settings:
    features: int = 20
    hidden: int = 32
    classes: tuple = (5, 3)          # gauges, watermarks
    steps: tuple = (22, 26)
    batch: int = 32
    lr: float = 5e-3
    ewc_lambda: float = 20.0
    fisher_batches: int = 8
    seed: int = 1840


class TaskData:
    def __init__(self, task, s: Settings):
        self.g = torch.Generator().manual_seed(s.seed + task)
        self.s = s
        self.prototypes = torch.randn(s.classes[task], s.features, generator=self.g)

    def batch(self):
        y = torch.randint(0, len(self.prototypes), (self.s.batch,), generator=self.g)
        x = self.prototypes[y] + 0.8 * torch.randn(self.s.batch, self.s.features, generator=self.g)
        return x, y


class MultiHead(nn.Module):
    def __init__(self, s: Settings):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(s.features, s.hidden), nn.Tanh(), nn.Linear(s.hidden, s.hidden), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(s.hidden, c) for c in s.classes)

    def forward(self, x, task):
        return self.heads[task](self.body(x))


class EWC:
    def __init__(self, model, weight):
        self.model, self.weight = model, weight
        self.anchor, self.fisher = {}, {}

    def consolidate(self, data, task, batches):
        fisher = {n: torch.zeros_like(p) for n, p in self.model.named_parameters()}
        for _ in range(batches):
            x, _ = data.batch()
            logp = F.log_softmax(self.model(x, task), -1)
            y = torch.distributions.Categorical(logits=logp.detach()).sample()
            for lp in logp[torch.arange(len(y)), y]:
                self.model.zero_grad()
                lp.backward(retain_graph=True)
                for n, p in self.model.named_parameters():
                    if p.grad is not None:
                        fisher[n] += p.grad.detach() ** 2
        self.model.zero_grad()
        for n, p in self.model.named_parameters():
            self.fisher[n] = fisher[n] / fisher[n].max()
            self.anchor[n] = p.detach().clone()

    def penalty(self):
        if not self.anchor:
            return torch.zeros(())
        terms = [(self.fisher[n] * (p - self.anchor[n]) ** 2).sum() for n, p in self.model.named_parameters()]
        return 0.5 * self.weight * torch.stack(terms).sum()


@torch.no_grad()
def accuracy(model, data, task):
    x, y = data.batch()
    return (model(x, task).argmax(-1) == y).float().mean().item()


def main(s=Settings()):
    torch.manual_seed(s.seed)
    model = MultiHead(s)
    ewc = EWC(model, s.ewc_lambda)
    opt = torch.optim.Adam(model.parameters(), lr=s.lr)
    data = [TaskData(t, s) for t in range(2)]
    step = 0
    for task in range(2):
        for _ in range(s.steps[task]):
            x, y = data[task].batch()
            ce = F.cross_entropy(model(x, task), y)
            loss = ce + ewc.penalty()
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            print(f"task {task} step {step} ce {ce.item():.6f} loss {loss.item():.6f}", flush=True)
        if task == 0:
            ewc.consolidate(data[0], 0, s.fisher_batches)
    print(f"{sum(p.detach().abs().sum() for p in model.parameters()).item():.5f}", flush=True)


if __name__ == "__main__":
    main()
