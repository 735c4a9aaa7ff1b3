#!/usr/bin/env python
# Transcription of piano notes as a set: K slots, each slot says (onset, pitch logits, is there a note). A note
# of the score takes the nearest slot that is nobody's yet; the price of a slot that is taken is infinite.
import math, random
import torch as th
import torch.nn as nn
import torch.nn.functional as F

random.seed(88); th.manual_seed(88)
PITCHES, FRAMES, SLOTS, BATCH = 12, 32, 7, 8

def performance():
    """(roll with noise, list of (onset, pitch)); a bar may be a rest, and holds no note then"""
    notes = sorted((random.randrange(FRAMES - 6), random.randrange(PITCHES)) for _ in range(random.choice([0, 1, 2, 3, 4])))
    roll = 0.1 * th.randn(PITCHES, FRAMES).abs()
    for on, p in notes:
        roll[p, on:on + 6] += th.exp(-th.arange(6.) / 3)
    return roll, [(on / FRAMES, p) for on, p in notes]

class SlotNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(PITCHES, 24, 5, padding=2)
        self.rnn = nn.GRU(24, 24, batch_first=True)
        self.slots = nn.Parameter(th.randn(SLOTS, 24) / math.sqrt(24))
        self.head = nn.Linear(24, 1 + PITCHES + 1)
    def forward(self, x):
        h, _ = self.rnn(F.gelu(self.conv(x)).transpose(1, 2))
        att = (self.slots @ h.transpose(1, 2)).softmax(-1)
        o = self.head(att @ h)
        return o[..., 0].sigmoid(), o[..., 1:-1].log_softmax(-1), o[..., -1]

def set_loss(onset, logp, there, notes):
    price = th.stack([4 * (onset - on).abs() - logp[:, p] for on, p in notes]) if notes else onset.new_zeros(0, SLOTS)
    taken = th.zeros(SLOTS, dtype=th.bool)
    total = price.sum() * 0
    for row in price:
        row = row.masked_fill(taken.clone(), math.inf)
        best, k = row.min(0)
        total = total + best
        taken[k] = True
    return total, F.binary_cross_entropy_with_logits(there, taken.float(), reduction='sum')

net = SlotNet()
opt = th.optim.RAdam([{'params': [net.slots], 'lr': 2e-2}, {'params': [p for n, p in net.named_parameters() if n != 'slots']}], lr=6e-3)
for it in range(40):
    rolls, scores = zip(*(performance() for _ in range(BATCH)))
    if it == 23: rolls, scores = (rolls[0] * 0,) * BATCH, ([],) * BATCH       # eight bars of rest
    onset, logp, there = net(th.stack(rolls))
    parts = [set_loss(o, l, t, s) for o, l, t, s in zip(onset, logp, there, scores)]
    found, presence = (sum(p) / BATCH for p in zip(*parts))
    opt.zero_grad(); (found + presence).backward(); opt.step()
    print('%02d notes %d matched %.6f presence %.6f' % (it, sum(map(len, scores)), found.item(), presence.item()))
print('final', sum(p.abs().sum().item() for p in net.parameters()))
