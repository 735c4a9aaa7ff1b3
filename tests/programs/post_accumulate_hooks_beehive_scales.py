"""Honey on beehive scales (grams, not kilograms - the loss is as large as it looks).

No optimizer loop at all: each parameter owns an optimizer that steps in a post-accumulate-grad hook as soon as its
gradient is complete, after which the gradient is freed. ACCUM micro-batches make one update.
"""
from functools import partial

import torch
from torch import nn

ACCUM, UPDATES, HIVES, HOURS = 3, 22, 12, 48


class HiveScale(nn.Module):
    def __init__(self):
        super().__init__()
        self.apiary = nn.Embedding(HIVES, 8)             # from last year's survey, not trained
        self.apiary.requires_grad_(False)
        self.rnn = nn.GRU(3, 16, batch_first=True)
        self.read = nn.Linear(24, 1)

    def forward(self, hive, weather):
        _, h = self.rnn(weather)
        both = torch.cat([h[-1], self.apiary(hive)], -1)
        return 30_000.0 + 5_000.0 * self.read(both).squeeze(-1)


class StepInBackward:
    """Counts the micro-batches of each parameter by itself; hooks fire in whatever order autograd likes."""

    def __init__(self, model, make):
        self.seen, self.optimizers, self.updates = {}, {}, {}
        for name, p in model.named_parameters():
            if p.requires_grad:
                self.optimizers[name] = make([p])
                self.seen[name] = self.updates[name] = 0
                p.register_post_accumulate_grad_hook(partial(self.arrived, name))

    def arrived(self, name, p):
        self.seen[name] += 1
        if self.seen[name] < ACCUM:
            return
        self.seen[name] = 0
        # summed loss in grams squared: bring the gradient down by its own length, never above one
        length = p.grad.norm()
        if length > 1.0:
            p.grad.div_(length)
        self.optimizers[name].step()
        self.optimizers[name].zero_grad(set_to_none=True)
        self.updates[name] += 1


def season(g):
    tilt = torch.randn(3, generator=g)
    base = 3_000.0 * torch.randn(HIVES, generator=g)
    while True:
        hive = torch.randint(HIVES, (16,), generator=g)
        weather = torch.randn(16, HOURS, 3, generator=g)
        grams = 32_000.0 + base[hive] + 4_000.0 * torch.tanh(weather.mean(1) @ tilt * 3)
        yield hive, weather, grams


torch.manual_seed(314)
torch.set_num_threads(1)
model = HiveScale()
stepper = StepInBackward(model, partial(torch.optim.SGD, lr=0.08))
data = season(torch.Generator().manual_seed(6))

for update in range(1, UPDATES + 1):
    total = 0.0
    for _ in range(ACCUM):
        hive, weather, grams = next(data)
        loss = (model(hive, weather) - grams).square().sum()
        loss.backward()
        total += loss.item()
    print(f"update {update:2d}  squared grams {total:.6e}")

assert set(stepper.updates.values()) == {UPDATES}
print(f"read-out bias {model.read.bias.item():.6f}")
