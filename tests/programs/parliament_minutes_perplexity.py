"""Word model of parliamentary minutes, one speech per update, bfloat16 autocast, perplexity printed as we go."""
import math
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import clip_grad_norm_

OPEN = "the honourable member mister speaker minister chair house".split()
VERB = "moves opposes regrets welcomes notes defers amends withdraws".split()
THING = "bill budget motion clause harbour railway tariff school hospital canal petition amendment".split()
TAIL = "today again with regret at length in committee on division without debate".split()
WORDS = ["<s>"] + sorted(set(OPEN + VERB + THING + TAIL))
INDEX = {w: i for i, w in enumerate(WORDS)}


def sentence(rng):
    return [rng.choice(OPEN), rng.choice(VERB), "the", rng.choice(THING), rng.choice(TAIL)]


def sitting(rng, speeches=40):
    lengths = [rng.randint(3, 12) for _ in range(speeches)]
    lengths[22] = 95  # second reading of the budget
    for n in lengths:
        words = [w for _ in range(n) for w in sentence(rng)]
        yield torch.tensor([0] + [INDEX[w] for w in words])


class MinuteModel(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.mix = nn.ModuleList([nn.Conv1d(dim, dim, 2) for _ in range(2)])
        self.out = nn.Linear(dim, vocab)

    def forward(self, ids):
        h = self.emb(ids).t().unsqueeze(0)
        for conv in self.mix:
            h = h + F.gelu(conv(F.pad(h, (1, 0))))
        return self.out(h.squeeze(0).t())


class Secretary:
    def __init__(self):
        torch.manual_seed(1848)
        self.model = MinuteModel(len(WORDS))
        self.opt = torch.optim.Adam(self.model.parameters(), lr=2e-3)
        self.sched = torch.optim.lr_scheduler.LambdaLR(self.opt, lambda k: min(1.0, (k + 1) / 10))

    def read(self, speech):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = self.model(speech[:-1])
        return F.cross_entropy(logits.float(), speech[1:], reduction="sum")

    def learn(self, nll):
        self.opt.zero_grad()
        nll.backward()
        clip_grad_norm_(self.model.parameters(), 1.0)
        self.opt.step()
        self.sched.step()


def main():
    secretary = Secretary()
    for number, speech in enumerate(sitting(random.Random(3)), start=1):
        nll = secretary.read(speech)
        perplexity = math.exp(nll.item())
        secretary.learn(nll)
        print(f"speech {number:2d}: {len(speech) - 1} words, nll {nll.item():.3f}, log10 perplexity {math.log10(perplexity):.2f}")
    print("weights", sum(p.detach().abs().sum().item() for p in secretary.model.parameters()))


if __name__ == "__main__":
    main()
