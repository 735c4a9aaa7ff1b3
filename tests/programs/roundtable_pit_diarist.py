"""EEND-style diarisation for round-table podcasts: who speaks when, permutation invariant.

Shows have 1-4 speakers, the model has 4 output slots. Permutations that put a real speaker into a closed slot
cost inf, so that min() never takes them. Loss is summed over frames (episodes differ in length).
"""
import itertools
from dataclasses import dataclass

import torch
from torch import nn
import torch.nn.functional as F

SLOTS = 4
PERMS = torch.tensor(list(itertools.permutations(range(SLOTS))))


@dataclass(slots=True)
class Episode:
    feats: torch.Tensor      # T x F
    talk: torch.Tensor       # T x SLOTS, zero columns for absent guests
    guests: int
    title: str

    def to(self, device):
        return Episode(self.feats.to(device), self.talk.to(device), self.guests, self.title)


def record(step, gen):
    T = int(torch.randint(40, 120, (1,), generator=gen))
    # curriculum: monologues, then interviews, then the round table
    match step:
        case s if s <= 8: guests, title = 1, "monologue"
        case s if s <= 18: guests, title = 2, "interview"
        case s if s % 4 == 0: guests, title = 0, "jingle"
        case _: guests, title = 3 + step % 2, "roundtable"
    talk = torch.zeros(T, SLOTS)
    for g in range(guests):
        talk[:, g] = (torch.sin(torch.arange(T) / (4.0 + 2 * g) + g) > 0.2).float()
    voice = torch.randn(SLOTS, 10, generator=gen)
    feats = talk @ voice + 0.2 * torch.randn(T, 10, generator=gen)
    return Episode(feats, talk, guests, title)


class Diarist(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(10, 24, bidirectional=True)
        self.slots = nn.Linear(48, SLOTS)
        self.count = nn.Linear(48, SLOTS + 1)

    def forward(self, ep):
        h, _ = self.rnn(ep.feats)
        return self.slots(h), self.count(h.mean(0))


def pit(logits, ep):
    # cost[i, j]: slot i plays column j
    cost = F.binary_cross_entropy_with_logits(
        logits[:, :, None].expand(-1, -1, SLOTS), ep.talk[:, None].expand(-1, SLOTS, -1), reduction="none").sum(0)
    closed = torch.arange(SLOTS) >= max(ep.guests, 1)
    real = torch.arange(SLOTS) < ep.guests
    cost = cost.masked_fill(closed[:, None] & real[None], float("inf"))
    totals = cost[torch.arange(SLOTS), PERMS].sum(1)
    return totals.min(0)


def der(logits, ep, perm):
    said = (logits > 0).float()
    ref = ep.talk[:, PERMS[perm]]
    return ((said != ref).sum() / ref.sum()).item()      # a jingle has no speech: inf or nan, only printed


def main():
    torch.manual_seed(99)
    gen = torch.Generator().manual_seed(1)
    model = Diarist()
    opt = torch.optim.Adam(model.parameters(), lr=4e-3)
    sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: min(1.0, (s + 1) / 5))
    for step in range(1, 33):
        ep = record(step, gen).to("cpu")
        logits, count = model(ep)
        loss, perm = pit(logits, ep)
        if ep.title != "monologue":
            loss = loss + 5 * F.cross_entropy(count[None], torch.tensor([ep.guests]))
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        sched.step()
        print(f"ep {step:02d} {ep.title:10s} frames {len(ep.feats):3d} loss {loss.item():.4f} "
              f"DER {der(logits.detach(), ep, perm):.3f}")


if __name__ == "__main__":
    main()
