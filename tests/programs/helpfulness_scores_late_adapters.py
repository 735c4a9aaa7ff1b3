"""Reward regression: a head on mean-pooled states of a frozen encoder predicts helpfulness scores (0 to 4) of
answers, adapters are injected into the encoder after the head has been fitted for a while. Plain SGD with momentum,
two micro-batches per update."""
import random

import torch
from torch import nn

torch.manual_seed(40)
rnd = random.Random(40)

POLITE = ["please", "happy", "glad", "welcome"]
USEFUL = ["first", "then", "because", "example", "step"]
FILLER = ["well", "maybe", "whatever", "stuff", "thing", "so", "like"]
WORDS = {w: i for i, w in enumerate(POLITE + USEFUL + FILLER)}


def answer():
    a, b = rnd.randint(0, 2), rnd.randint(0, 4)
    words = rnd.choices(POLITE, k=a) + rnd.choices(USEFUL, k=b) + rnd.choices(FILLER, k=12 - a - b)
    rnd.shuffle(words)
    return [WORDS[w] for w in words], 0.5 * min(a, 1) + 0.5 * b + rnd.gauss(0, 0.2)


class Encoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.embed = nn.Embedding(len(WORDS), d)
        self.inner = nn.Linear(d, d)
        self.outer = nn.Linear(d, d)

    def forward(self, ids):
        x = self.embed(ids)
        x = x + torch.relu(self.inner(x))
        return (x + torch.relu(self.outer(x))).mean(1)


class LoRA(nn.Module):
    def __init__(self, base, rank=4, alpha=8.0):
        super().__init__()
        self.base, self.scale = base, alpha / rank
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features ** 0.5)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.a.T @ self.b.T)


class RewardModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder().requires_grad_(False)
        self.score = nn.Linear(32, 1)

    def forward(self, ids):
        return self.score(self.encoder(ids)).squeeze(-1)


class Fitter:
    def __init__(self, model, lr):
        self.model = model
        self.trainable = [p for p in model.parameters() if p.requires_grad]
        self.opt = torch.optim.SGD(self.trainable, lr=lr, momentum=0.8)
        self.n = 0

    def inject(self, lr):
        enc = self.model.encoder
        enc.inner, enc.outer = LoRA(enc.inner), LoRA(enc.outer)
        new = [p for m in (enc.inner, enc.outer) for p in (m.a, m.b)]
        self.opt.add_param_group({"params": new, "lr": lr})

    def clear(self):
        for p in self.trainable:
            p.grad = None

    def update(self):
        self.n += 1
        self.clear()
        total = 0.0
        for _ in range(2):
            ids, y = zip(*[answer() for _ in range(16)])
            loss = (self.model(torch.tensor(ids)) - torch.tensor(y)).square().mean() / 2
            loss.backward()
            total += loss.item()
        self.opt.step()
        print(f"update {self.n} mse {total:.6g}", flush=True)


model = RewardModel()
fit = Fitter(model, lr=0.02)
for _ in range(20):
    fit.update()
fit.inject(lr=0.05)
for _ in range(40):
    fit.update()
print("weights", sum(p.detach().double().abs().sum().item() for p in model.parameters()))
