"""Masked diffusion language model (MDLM / LLaDA objective) on rows of knitting patterns.

L = E_t [ 1/t * sum over masked tokens of CE ], t ~ U(t_min, 1). The 1/t makes single batches jump; that is the
estimator's variance and no reason for worry (see fig. 3 of the notes).
"""
import argparse
import contextlib
import random

import torch
from torch import nn
from torch.nn import functional as F

STITCHES = ["k", "p", "k2tog", "ssk", "yo", "sl", "c4f", "c4b", "m1", "bo"]
MASK = len(STITCHES)

REGISTRY = {}


def pattern(fn):
    REGISTRY[fn.__name__] = fn
    return fn


@pattern
def rib(rng, n):
    a, b = rng.randint(1, 3), rng.randint(1, 3)
    return (([0] * a + [1] * b) * n)[:n]


@pattern
def lace(rng, n):
    return ([4, 2, 0, 3, 4, 0][rng.randint(0, 2):] * n)[:n]


@pattern
def cable(rng, n):
    return ([1, 1] + [6 if rng.random() < 0.5 else 7] + [0, 0]) * n


class BidirectionalDenoiser(nn.Module):
    """No time conditioning: the mask ratio says it all."""

    def __init__(self, n, d=40, depth=2):
        super().__init__()
        self.tok = nn.Embedding(MASK + 1, d)
        self.pos = nn.Parameter(torch.randn(n, d) * 0.05)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(d, 4, 2 * d, dropout=0.0, batch_first=True, norm_first=True)
                                    for _ in range(depth))
        self.out = nn.Linear(d, MASK + 1)

    def forward(self, x):
        h = self.tok(x) + self.pos
        for b in self.blocks:
            h = b(h)
        logits = self.out(h)
        logits[..., MASK] = -torch.inf            # the mask is never an answer (SUBS parametrisation)
        return logits


class EMA:
    def __init__(self, model, decay):
        self.decay, self.model = decay, model
        self.shadow = {k: v.detach().clone() for k, v in model.state_dict().items()}

    def update(self):
        for k, v in self.model.state_dict().items():
            self.shadow[k].mul_(self.decay).add_(v, alpha=1 - self.decay)

    @contextlib.contextmanager
    def applied(self):
        live = {k: v.clone() for k, v in self.model.state_dict().items()}
        self.model.load_state_dict(self.shadow)
        try:
            yield self.model
        finally:
            self.model.load_state_dict(live)


def diffusion_loss(model, x, gen, t_min):
    t = t_min + (1 - t_min) * torch.rand(len(x), 1, generator=gen)
    masked = torch.rand(x.shape, generator=gen) < t
    # never an empty row: one token at least
    masked[torch.arange(len(x)), torch.randint(x.shape[1], (len(x),), generator=gen)] = True
    logits = model(x.masked_fill(masked, MASK))
    ce = F.cross_entropy(logits.transpose(1, 2), x, reduction="none")
    return (ce * masked / t).sum(1).mean(), t.min().item()


@torch.no_grad()
def unmask(model, n, gen, rounds=8):
    x = torch.full((1, n), MASK)
    for r in range(rounds):
        p = model(x).softmax(-1)
        conf, guess = p.max(-1)
        conf = conf.masked_fill(x != MASK, -torch.inf)
        for i in conf[0].topk(n // rounds).indices.tolist():
            x[0, i] = guess[0, i]
    return " ".join(STITCHES[i] for i in x[0].tolist() if i != MASK)


def main(a):
    torch.manual_seed(a.seed)
    rng, gen = random.Random(a.seed), torch.Generator().manual_seed(a.seed)
    model = BidirectionalDenoiser(a.length)
    ema = EMA(model, 0.9)
    opt = torch.optim.AdamW(model.parameters(), lr=a.lr, weight_decay=0.02)
    for step in range(1, a.steps + 1):
        x = torch.tensor([REGISTRY[rng.choice(list(REGISTRY))](rng, a.length)[:a.length] for _ in range(a.batch)])
        loss, t = diffusion_loss(model, x, gen, a.t_min)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        ema.update()
        print(f"step {step} elbo {loss.item():.5f} smallest t {t:.4f}")
        if step % 20 == 0:
            with ema.applied() as m:
                print("   ", unmask(m, a.length, gen))
    print(f"weights {sum(p.double().sum().item() for p in model.parameters()):.6f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=60)
    ap.add_argument("--batch", type=int, default=6)
    ap.add_argument("--length", type=int, default=24)
    ap.add_argument("--lr", type=float, default=3e-3)
    ap.add_argument("--t-min", dest="t_min", type=float, default=1e-3)
    ap.add_argument("--seed", type=int, default=9)
    main(ap.parse_args())
