"""Grades of tea leaves with a home-made engine: handlers are attached to events, one of them re-weights the classes
after each epoch by where the mistakes were."""

import enum
import logging
import sys
from collections import defaultdict
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

log = logging.getLogger("tea")
GRADES = ["pekoe", "orange pekoe", "souchong", "fannings"]


class Events(enum.Enum):
    STARTED = 1
    EPOCH_STARTED = 2
    ITERATION_COMPLETED = 3
    EPOCH_COMPLETED = 4
    COMPLETED = 5


class Engine:
    def __init__(self, process):
        self.process = process
        self.handlers = defaultdict(list)
        self.state = SimpleNamespace(epoch=0, iteration=0, output=None)

    def on(self, event):
        def register(f):
            self.handlers[event].append(f)
            return f

        return register

    def fire(self, event):
        for f in self.handlers[event]:
            f(self)

    def run(self, loader, epochs):
        self.fire(Events.STARTED)
        for self.state.epoch in range(1, epochs + 1):
            self.fire(Events.EPOCH_STARTED)
            for batch in loader():
                self.state.iteration += 1
                self.state.output = self.process(self, batch)
                self.fire(Events.ITERATION_COMPLETED)
            self.fire(Events.EPOCH_COMPLETED)
        self.fire(Events.COMPLETED)


class HeavyBall(torch.optim.Optimizer):
    def __init__(self, params, lr=0.1, beta=0.9):
        super().__init__(params, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                v.mul_(group["beta"]).add_(p.grad)
                p.add_(v, alpha=-group["lr"])


def leaves(n, seed):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, len(GRADES), (n,), generator=g)
    centre = torch.randn(len(GRADES), 10, generator=g) * 1.3
    x = centre[y] + 0.5 * torch.randn(n, 10, generator=g)
    return x, y


def main():
    logging.basicConfig(stream=sys.stdout, format="%(message)s", level=logging.INFO)
    torch.manual_seed(8)
    x, y = leaves(96, seed=13)
    order = torch.Generator().manual_seed(1)

    def loader(batch=16):
        for idx in torch.randperm(len(x), generator=order).split(batch):
            yield x[idx], y[idx]

    model = nn.Sequential(nn.Linear(10, 24), nn.Tanh(), nn.Linear(24, len(GRADES)))
    optimizer = HeavyBall(model.parameters(), lr=0.07, beta=0.8)

    def train(engine, batch):
        features, grade = batch
        logits = model(features)
        loss = F.cross_entropy(logits, grade, weight=engine.state.weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        wrong = logits.detach().argmax(1) != grade
        engine.state.errors += torch.bincount(grade[wrong], minlength=len(GRADES))
        return loss.item(), wrong.sum().item()

    trainer = Engine(train)

    @trainer.on(Events.STARTED)
    def begin(engine):
        engine.state.weight = torch.ones(len(GRADES))

    @trainer.on(Events.EPOCH_STARTED)
    def forget(engine):
        engine.state.errors = torch.zeros(len(GRADES))

    @trainer.on(Events.ITERATION_COMPLETED)
    def tell(engine):
        loss, wrong = engine.state.output
        log.info("epoch %d iteration %d loss %.7f wrong %d", engine.state.epoch, engine.state.iteration, loss, wrong)

    @trainer.on(Events.EPOCH_COMPLETED)
    def focus(engine):
        # half of the attention is spread evenly, half goes where the mistakes of this epoch were
        share = engine.state.errors / engine.state.errors.sum()
        engine.state.weight = 0.5 + 0.5 * len(GRADES) * share

    @trainer.on(Events.COMPLETED)
    def finish(engine):
        log.info("%.6f", sum(p.detach().abs().sum().item() for p in model.parameters()))

    trainer.run(loader, epochs=14)


if __name__ == "__main__":
    main()
