"""Amortised variational topic model of what is said in a harbour office: theta ~ Dirichlet, words ~ theta beta.

The encoder gives each note its own Dirichlet. Notes come in pairs, morning and evening of one day, and the
evening is expected to talk about what the morning talked about (a divergence between the two samples).
"""
import torch
from torch import nn
from torch.distributions import Dirichlet, kl_divergence

VOCAB, TOPICS, NOTES, BATCH, STEPS = 90, 6, 800, 40, 60
torch.manual_seed(17)
torch.distributions.Distribution.set_default_validate_args(False)   # a fifth of the time


def collect_notes():
    g = torch.Generator().manual_seed(18)
    beta = torch.full((TOPICS, VOCAB), 0.02)
    for k in range(TOPICS):
        beta[k, k * 15:(k + 1) * 15] = 1.0
    beta /= beta.sum(1, keepdim=True)
    main = torch.randint(TOPICS, (NOTES,), generator=g)
    side = torch.randint(TOPICS, (NOTES,), generator=g)
    mix = 0.8 + 0.2 * torch.rand(NOTES, 1, generator=g)
    p = mix * beta[main] + (1 - mix) * beta[side]
    p[1::2] = 0.5 * p[0::2] + 0.5 * p[1::2]
    words = torch.multinomial(p, 40, replacement=True, generator=g)
    return torch.zeros(NOTES, VOCAB).scatter_add_(1, words, torch.ones(NOTES, 40))


class Guide(nn.Module):
    """q(theta | note)"""

    def __init__(self, hidden=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(VOCAB, hidden), nn.Softplus(), nn.Linear(hidden, TOPICS))

    def forward(self, counts):
        share = counts / counts.sum(1, keepdim=True)
        return Dirichlet(nn.functional.softplus(self.net(10 * share)) + 1e-3)


class Topics(nn.Module):
    def __init__(self):
        super().__init__()
        self.logits = nn.Parameter(0.3 * torch.randn(TOPICS, VOCAB))
        self.register_buffer("prior", torch.full((TOPICS,), 0.08))

    def forward(self, theta, counts):
        p = theta @ self.logits.softmax(-1)
        return (counts * p.log()).sum(1)


def same_day(theta):
    """KL(morning || evening) of the sampled proportions."""
    morning, evening = theta[0::2], theta[1::2]
    return (morning * (morning / evening).log()).sum(1)


class SVI:
    def __init__(self, model, guide, lr):
        self.model, self.guide = model, guide
        self.optimizer = torch.optim.Adam([*model.parameters(), *guide.parameters()], lr=lr)

    def step(self, counts, weight):
        q = self.guide(counts)
        theta = q.rsample()
        prior = Dirichlet(self.model.prior.expand(len(counts), -1))
        elbo = self.model(theta, counts) - kl_divergence(q, prior)
        loss = weight * same_day(theta).mean() - elbo.mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item(), q.concentration.detach()


def main():
    notes = collect_notes()
    svi = SVI(Topics(), Guide(), lr=2e-3)
    order = torch.Generator().manual_seed(19)
    for step in range(1, STEPS + 1):
        day = torch.randint(NOTES // 2, (BATCH // 2,), generator=order)
        pick = torch.stack([2 * day, 2 * day + 1], 1).flatten()
        loss, conc = svi.step(notes[pick], weight=0.5)
        print(f"step {step:3d} loss {loss:.5f} smallest concentration {conc.min().item():.5f}", flush=True)
    total = sum(p.abs().sum() for m in (svi.model, svi.guide) for p in m.parameters())
    print(f"{total.item():.5f}")


if __name__ == "__main__":
    main()
