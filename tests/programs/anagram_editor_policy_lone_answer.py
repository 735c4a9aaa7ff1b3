"""A small policy writes answers to anagram clues; REINFORCE with advantages inside the group.

Duplicates in a group are thrown out before the rewards are compared (the editor
does not want to pay twice for one answer).
"""
import itertools
import warnings
from typing import NamedTuple

import torch
from torch import nn
from torch.distributions import Categorical

warnings.filterwarnings("ignore", message=r"std\(\)")
torch.manual_seed(31)
LETTERS = "aelnrst"
GROUP, LENGTH, STEPS = 6, 3, 50
LEXICON = {"ale": 1.0, "ant": 1.0, "art": 1.0, "ear": 1.0, "eat": 1.0, "let": 1.0, "net": 1.0, "ran": 1.0, "rat": 1.0,
           "sea": 1.0, "sat": 1.0, "set": 1.0, "tea": 1.2, "tan": 1.0, "ten": 1.0, "tar": 1.0, "sent": 1.0}


class Draft(NamedTuple):
    words: list
    logp: torch.Tensor          # (group,), summed over the letters


class Setter(nn.Module):
    """letter by letter; h starts from the bag of letters in the clue"""

    def __init__(self, dim=32):
        super().__init__()
        self.bag = nn.Linear(len(LETTERS), dim)
        self.letter = nn.Embedding(len(LETTERS) + 1, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.out = nn.Linear(dim, len(LETTERS))

    def sample(self, clue, n):
        allowed = torch.tensor([c in clue for c in LETTERS])
        h = torch.tanh(self.bag(allowed.float())).expand(n, -1)
        last = torch.full((n,), len(LETTERS))
        logp, chosen = 0.0, []
        for _ in range(LENGTH):
            h = self.cell(self.letter(last), h)
            logits = self.out(h).masked_fill(~allowed, -1e9)
            dist = Categorical(logits=logits, validate_args=False)
            last = dist.sample()
            logp = logp + dist.log_prob(last)
            chosen.append(last)
        words = ["".join(LETTERS[i] for i in row) for row in torch.stack(chosen, 1).tolist()]
        return Draft(words, logp)


def reward(word, clue):
    spare = list(clue)
    used = sum(1 for c in word if c in spare and not spare.remove(c))
    return LEXICON.get(word, 0.0) + 0.1 * used


def first_of_each(words):
    seen = {}
    for i, w in enumerate(words):
        seen.setdefault(w, i)
    return torch.tensor(list(seen.values()))


clues = itertools.cycle(["tea", "rats", "lane", "nest", "eat", "learn", "tan"])
policy = Setter()
opt = torch.optim.Adam(policy.parameters(), lr=2e-2)

for step in range(1, STEPS + 1):
    clue = next(clues)
    draft = policy.sample(clue, GROUP)
    unique = first_of_each(draft.words)
    r = torch.tensor([reward(draft.words[i], clue) for i in unique.tolist()])
    advantage = (r - r.mean()) / (r.std() + 1e-4)
    loss = -(advantage * draft.logp[unique]).mean()
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    print(f"{step:2d} {clue:<5} answers {len(unique)} best {r.max().item():.2f} pg {loss.item():+.6f}")

with torch.no_grad():
    print("setter", sum(p.sum() for p in policy.parameters()).item())
