"""beta-DPO by hand: beta follows the batch's reward gap, and pairs far from the running gap are down-weighted."""
import copy

import torch
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
torch.manual_seed(11)
CFG = dict(vocab=60, dim=32, pairs=53, batch=4, epochs=3, lr=1e-3, beta0=0.3, alpha=0.4, keep=0.9)


class CooperLM(nn.Module):
    """GRU language model; small stand-in for the workshop's reply bot."""

    def __init__(self, vocab, dim):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, vocab)

    def logps(self, ids, answer_mask):
        h, _ = self.rnn(self.emb(ids[:, :-1]))
        lp = F.log_softmax(self.head(h), -1).gather(-1, ids[:, 1:, None])[..., 0]
        return (lp * answer_mask[:, 1:]).sum(-1)


def make_pairs(n, vocab):
    g = torch.Generator().manual_seed(4)
    prompt = torch.randint(2, vocab, (n, 5), generator=g)
    good = torch.randint(2, vocab // 2, (n, 7), generator=g)
    bad = torch.randint(vocab // 2, vocab, (n, 7), generator=g)
    mask = torch.cat([torch.zeros(n, 5), torch.ones(n, 7)], 1)
    return torch.cat([prompt, good], 1), torch.cat([prompt, bad], 1), mask


class GapTracker:
    """Running mean and spread of the implicit reward gap (M0 and sigma of the paper)."""

    def __init__(self, keep):
        self.keep, self.mean, self.sigma = keep, None, None

    def update(self, gap):
        m, s = gap.mean(), gap.std()
        if self.mean is None:
            self.mean, self.sigma = m, s
        else:
            self.mean = self.keep * self.mean + (1 - self.keep) * m
            self.sigma = self.keep * self.sigma + (1 - self.keep) * s

    def weight(self, gap):
        w = torch.exp(-0.5 * ((gap - self.mean) / (self.sigma + 1e-6)) ** 2)
        return w / w.mean().clamp_min(1e-4)


policy = CooperLM(CFG["vocab"], CFG["dim"])
reference = copy.deepcopy(policy).requires_grad_(False)
chosen, rejected, mask = make_pairs(CFG["pairs"], CFG["vocab"])
optimizer = torch.optim.RMSprop(policy.parameters(), lr=CFG["lr"])
tracker = GapTracker(CFG["keep"])

step = 0
for epoch in range(CFG["epochs"]):
    order = torch.randperm(CFG["pairs"], generator=torch.Generator().manual_seed(epoch))
    for idx in order.split(CFG["batch"]):
        step += 1
        with torch.no_grad():
            ref_gap = reference.logps(chosen[idx], mask[idx]) - reference.logps(rejected[idx], mask[idx])
        gap = policy.logps(chosen[idx], mask[idx]) - policy.logps(rejected[idx], mask[idx]) - ref_gap
        reward_gap = CFG["beta0"] * gap.detach()
        if step > 1:                       # at the very first batch every gap is zero
            tracker.update(reward_gap)
            weights = tracker.weight(reward_gap)
            beta = CFG["beta0"] * (1 + CFG["alpha"] * (reward_gap.mean() - tracker.mean)).clamp(0.2, 3.0)
        else:
            weights, beta = torch.ones(len(idx)), torch.tensor(CFG["beta0"])
        loss = -(weights * F.logsigmoid(beta * gap)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch} step {step:02d} beta {beta.item():.4f} loss {loss.item():.6f}")

print("weights", sum(p.double().sum().item() for p in policy.parameters()))
