"""Next-rental model of a jigsaw library: GRU over a member's history, sampled softmax with log-frequency
correction. At step 25 the spring catalogue is opened: twice as many puzzles, the loss changes its level."""
from collections import deque

import numpy as np
import torch
from torch import nn
import torch.nn.functional as F
from tqdm import tqdm

SEED = 19
OLD, ALL = 150, 300
OPENING = 25
STEPS = 50
BATCH, NEG, HIST = 32, 40, 6


class Members:
    """Members like one theme and walk through it; popularity follows a power law."""

    def __init__(self, rng):
        self.rng = rng
        pop = 1.0 / (np.arange(OLD) + 3.0)
        self.p_old = pop / pop.sum()
        self.theme = np.arange(ALL) % 12

    def batch(self, n, spring):
        out = []
        for _ in range(n):
            theme = self.rng.integers(12)
            pool = np.flatnonzero(self.theme[: ALL if spring else OLD] == theme)
            weight = np.where(pool < OLD, self.p_old[np.minimum(pool, OLD - 1)], 0.02)
            out.append(self.rng.choice(pool, size=HIST + 1, p=weight / weight.sum()))
        rows = torch.from_numpy(np.stack(out))
        return rows[:, :-1], rows[:, -1]


class UnigramSampler:
    """Draws negatives by rental counts. What was never rented has probability 0 and log-probability -inf."""

    def __init__(self, n_items, generator):
        self.counts = torch.zeros(n_items)
        self.counts[:OLD] = 1.0
        self.gen = generator

    def observe(self, items):
        self.counts += torch.bincount(items.flatten(), minlength=len(self.counts)).float()

    def log_q(self):
        return (self.counts / self.counts.sum()).log()

    def draw(self, n):
        return torch.multinomial(self.counts, n, replacement=True, generator=self.gen)


class RentalModel(nn.Module):
    def __init__(self, n_items, width=32):
        super().__init__()
        self.items = nn.Embedding(n_items, width)
        self.bias = nn.Embedding(n_items, 1)
        nn.init.normal_(self.items.weight, std=0.1)
        nn.init.zeros_(self.bias.weight)
        self.gru = nn.GRU(width, width, batch_first=True)
        self.proj = nn.Linear(width, width)

    def user(self, history):
        _, h = self.gru(self.items(history))
        return self.proj(h[-1])

    def score(self, user, items):
        return user @ self.items(items).t() + self.bias(items).squeeze(-1)


def sampled_softmax(model, user, positive, sampler):
    log_q = sampler.log_q()
    negatives = sampler.draw(NEG)
    # a positive that is new in the catalogue has no frequency yet: treat it as the rarest one that has
    rarest = log_q[torch.isfinite(log_q)].min()
    correction = log_q.clamp(min=rarest.item())
    pos = (user * model.items(positive)).sum(-1) + model.bias(positive).squeeze(-1) - correction[positive]
    neg = model.score(user, negatives) - correction[negatives]
    hit = negatives[None, :] == positive[:, None]
    neg = neg.masked_fill(hit, float("-inf"))              # accidental hits leave the softmax
    logits = torch.cat([pos[:, None], neg], 1)
    return F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long)), hit.sum().item()


@torch.no_grad()
def recall_by_age(model, user, positive, spring):
    n = ALL if spring else OLD
    ranks = model.score(user, torch.arange(n))
    top = ranks.topk(20, -1).indices
    found = (top == positive[:, None]).any(-1).float()
    return found[positive < OLD].mean().item(), found[positive >= OLD].mean().item()   # nan before the opening


def main():
    torch.manual_seed(SEED)
    members = Members(np.random.default_rng(SEED))
    sampler = UnigramSampler(ALL, torch.Generator().manual_seed(SEED + 1))
    model = RentalModel(ALL)
    dense = torch.optim.Adam([*model.gru.parameters(), *model.proj.parameters()], lr=4e-3)
    tables = torch.optim.Adagrad([model.items.weight, model.bias.weight], lr=0.05)
    recent = deque(maxlen=5)
    for step in tqdm(range(1, STEPS + 1), disable=True):
        spring = step >= OPENING
        if step == OPENING:
            with torch.no_grad():
                model.items.weight[OLD:] = model.items.weight[:OLD].mean(0) + 0.3 * torch.randn(ALL - OLD, 32)
        history, positive = members.batch(BATCH, spring)
        user = model.user(history)
        loss, hits = sampled_softmax(model, user, positive, sampler)
        old, new = recall_by_age(model, user.detach(), positive, spring)
        dense.zero_grad()
        tables.zero_grad()
        loss.backward()
        dense.step()
        tables.step()
        sampler.observe(positive)
        recent.append(loss.item())
        low = sampler.log_q().min().item()
        print(f"{step} loss={loss.item():.6f} mean5={np.mean(recent):.5f} hits={hits} recall_old={old:.3f} "
              f"recall_new={new:.3f} rarest={low:.3f}", flush=True)
    print("weights", round(sum(p.abs().sum().item() for p in model.parameters()), 4), flush=True)


if __name__ == "__main__":
    main()
