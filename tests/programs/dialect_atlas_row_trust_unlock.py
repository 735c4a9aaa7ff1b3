"""Guess the region of a speaker from dialect words, with own optimizer: Adam with a trust ratio.

Matrices get one ratio each; tables get one per row, so that rare words move as fast as frequent ones.
The table comes from the previous atlas and stays frozen until the head has settled.
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

WORDS, REGIONS, LENGTH = 400, 9, 14
UNLOCK_AFTER = 18


class RowTrustAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.0, rowwise=False, top=10.0):
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, rowwise=rowwise,
                                      top=top))

    def _direction(self, p, group):
        state = self.state[p]
        if not state:
            state["t"] = 0
            state["m"] = torch.zeros_like(p)
            state["v"] = torch.zeros_like(p)
        b1, b2 = group["betas"]
        state["t"] += 1
        state["m"].lerp_(p.grad, 1 - b1)
        state["v"].mul_(b2).addcmul_(p.grad, p.grad, value=1 - b2)
        m = state["m"] / (1 - b1 ** state["t"])
        v = state["v"] / (1 - b2 ** state["t"])
        return m / (v.sqrt() + group["eps"]) + group["weight_decay"] * p

    @staticmethod
    def _trust(p, u, group):
        if group["rowwise"]:
            return p.norm(dim=1, keepdim=True) / u.norm(dim=1, keepdim=True)
        w, n = p.norm(), u.norm()
        return (w / n).clamp(max=group["top"]) if w > 0 and n > 0 else torch.ones(())

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                u = self._direction(p, group)
                p.sub_(group["lr"] * self._trust(p, u, group) * u)
        return loss


class Speakers:
    """Every region prefers some words; frequent words are spoken everywhere."""

    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        base = 1.0 / (torch.arange(WORDS).float() + 5)
        taste = torch.exp(1.2 * torch.randn(REGIONS, WORDS, generator=self.gen))
        self.p = base * taste

    def batch(self, n):
        region = torch.randint(0, REGIONS, (n,), generator=self.gen)
        return torch.multinomial(self.p[region], LENGTH, replacement=True, generator=self.gen), region


class AtlasNet(nn.Module):
    def __init__(self, table, width=24, hidden=48):
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table, freeze=True)
        self.gate = nn.Linear(width, 1)
        self.hidden = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, REGIONS)

    def forward(self, words):
        e = self.table(words)
        a = self.gate(e).softmax(1)
        return self.out(F.gelu(self.hidden((a * e).sum(1))))


def previous_atlas(speakers, width=24):
    """Stands for last century's vectors: a noisy projection of the regional preferences."""
    proj = torch.randn(REGIONS, width, generator=speakers.gen) / math.sqrt(REGIONS)
    return speakers.p.log().sub(speakers.p.log().mean(0)).t() @ proj


def build(seed):
    torch.manual_seed(seed)
    speakers = Speakers(seed)
    net = AtlasNet(previous_atlas(speakers))
    matrices = [p for n, p in net.named_parameters() if not n.startswith("table")]
    opt = RowTrustAdam([{"params": matrices, "weight_decay": 1e-3},
                        {"params": [net.table.weight], "rowwise": True, "lr": 3e-3}], lr=5e-3)
    return speakers, net, opt


def main(steps=40):
    speakers, net, opt = build(33)
    for step in range(1, steps + 1):
        if step == UNLOCK_AFTER + 1:
            net.table.weight.requires_grad_(True)
        words, region = speakers.batch(32)
        logits = net(words)
        loss = F.cross_entropy(logits, region)
        opt.zero_grad()
        loss.backward()
        acc = (logits.argmax(-1) == region).float().mean().item()
        print(f"step={step} loss={loss.item():.6f} acc={acc:.4f} "
              f"table={'free' if net.table.weight.requires_grad else 'frozen'}", flush=True)
        opt.step()
    print(f"{sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
