"""LoRA by hand (rank-stabilised scale alpha/sqrt(r)) on a frozen half-precision model of gardening letters.

The first epoch runs on plain SGD while B leaves zero; Adam (written for half, to save the float32 copies) takes over then.
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

VOCAB, LENGTH, BATCH = 48, 12, 8
EPOCH, EPOCHS = 14, 3


class RsLoRALinear(nn.Module):
    def __init__(self, base, r=8, alpha=4.0):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(r, base.in_features) / math.sqrt(base.in_features))
        self.B = nn.Parameter(torch.zeros(base.out_features, r))
        self.scale = alpha / math.sqrt(r)

    def forward(self, x):
        return self.base(x) + self.scale * F.linear(F.linear(x, self.A), self.B)


class Letters(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.mix = nn.Linear(2 * width, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, VOCAB)

    def forward(self, ids):
        x = self.embed(ids)
        before = F.pad(x[:, :-1], (0, 0, 1, 0))
        x = torch.tanh(self.mix(torch.cat([x, before], -1)))
        return self.head(x + torch.tanh(self.hidden(x)))


def add_adapters(model):
    model.requires_grad_(False)
    for name, child in list(model.named_children()):
        if isinstance(child, nn.Linear):
            setattr(model, name, RsLoRALinear(child))
    return model


class HalfAdam:
    """Adam whose moments live in the dtype of the weights."""

    def __init__(self, params, lr, betas=(0.9, 0.999), eps=1e-8):
        self.params = list(params)
        self.lr, self.betas, self.eps, self.t = lr, betas, eps, 0
        self.m = [torch.zeros_like(p) for p in self.params]
        self.v = [torch.zeros_like(p) for p in self.params]

    def zero_grad(self):
        for p in self.params:
            p.grad = None

    @torch.no_grad()
    def step(self):
        self.t += 1
        b1, b2 = self.betas
        size = self.lr * math.sqrt(1 - b2 ** self.t) / (1 - b1 ** self.t)
        for p, m, v in zip(self.params, self.m, self.v):
            m.mul_(b1).add_(p.grad, alpha=1 - b1)
            v.mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
            denominator = v.sqrt().add_(self.eps)
            p.addcdiv_(m, denominator, value=-size)


def letters(seed):
    g = torch.Generator().manual_seed(seed)
    while True:
        start = torch.randint(VOCAB, (BATCH, 1), generator=g)
        stride = torch.randint(1, 4, (BATCH, 1), generator=g)
        yield (start + stride * torch.arange(LENGTH)) % VOCAB


def train():
    torch.manual_seed(23)
    model = add_adapters(Letters()).half()
    trainable = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trainable, lr=0.5)
    stream = letters(5)
    step = 0
    for epoch in range(EPOCHS):
        if epoch == 1:
            optimizer = HalfAdam(trainable, lr=2e-3)
        for _ in range(EPOCH):
            step += 1
            ids = next(stream)
            logits = model(ids[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            print(f"epoch {epoch} step {step:02d} loss {loss.item():.6f}", flush=True)
    return model


if __name__ == "__main__":
    trained = train()
    print(f"{sum(p.detach().float().abs().sum().item() for p in trained.parameters()):.5f}")
