#!/usr/bin/env python
"""Preference tuning (DPO) of a toy language model that answers hotel guests.

Words 20..23 of the vocabulary are reserved and can never be said. Whenever the policy has
gone too far from the reference it is set back to it and starts over with half the beta.
"""
import copy
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclasses.dataclass
class Config:
    vocab: int = 24
    reserved: int = 4
    width: int = 20
    length: int = 9
    pairs: int = 12
    beta: float = 0.8
    leash: float = 0.06
    steps: int = 36
    seed: int = 77


class ReplyModel(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.words = nn.Embedding(cfg.vocab, cfg.width)
        self.rnn = nn.GRU(cfg.width, cfg.width, batch_first=True)
        self.head = nn.Linear(cfg.width, cfg.vocab)
        silent = torch.zeros(cfg.vocab)
        silent[-cfg.reserved:] = float("-inf")
        self.register_buffer("silent", silent)

    def forward(self, ids):
        return (self.head(self.rnn(self.words(ids))[0]) + self.silent).log_softmax(-1)


def sentence_score(table, ids):
    return table[:, :-1].gather(2, ids[:, 1:, None]).squeeze(2).sum(1)


def draw_pairs(cfg, step, gen):
    allowed = cfg.vocab - cfg.reserved
    good = torch.randint(0, allowed, (cfg.pairs, cfg.length), generator=gen)
    bad = good.clone()
    if step % 9 != 0:                       # every ninth sheet has only draws on it
        polite = torch.rand(good.shape, generator=gen) < 0.4
        good = torch.where(polite, good % 7, good)
        rude = torch.rand(good.shape, generator=gen) < 0.4
        bad = torch.where(rude, 13 + bad % 7, bad)
    return good, bad


def distance(p_table, q_table):
    inside = p_table.exp() * (p_table - q_table)
    return torch.where(p_table == float("-inf"), torch.zeros(()), inside).sum(-1).mean()


def main(cfg):
    torch.manual_seed(cfg.seed)
    gen = torch.Generator().manual_seed(cfg.seed)
    reference = ReplyModel(cfg).requires_grad_(False).eval()
    policy = copy.deepcopy(reference).requires_grad_(True)
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    beta = cfg.beta
    for step in range(1, cfg.steps + 1):
        good, bad = draw_pairs(cfg, step, gen)
        p_good, p_bad = policy(good), policy(bad)
        with torch.no_grad():
            r_good, r_bad = reference(good), reference(bad)
        margin = (sentence_score(p_good, good) - sentence_score(r_good, good)
                  - sentence_score(p_bad, bad) + sentence_score(r_bad, bad))
        loss = -F.logsigmoid(beta * margin).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            kl = distance(policy(good), r_good).item()
        print(f"step {step} loss {loss.item():.4f} lowest word {p_good.min().item():.1f} kl {kl:.4f}")
        if kl > cfg.leash:
            policy.load_state_dict(reference.state_dict())
            optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
            beta *= 0.5
            print(f"  back to the reference, beta {beta}")
    print("total of squared weights", round(sum(w.detach().pow(2).sum().item() for w in policy.parameters()), 3))


main(Config())
