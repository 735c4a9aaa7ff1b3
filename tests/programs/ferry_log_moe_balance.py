"""Mixture-of-experts character LM on ferry logs, written by hand (no megablocks): top-1 routing, dense dispatch by
index, per-expert z-loss so that no expert drifts off."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 4
torch.manual_seed(SEED)
random.seed(SEED)
torch.set_num_threads(1)

D, E, CTX, STEPS = 32, 4, 16, 36
ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789:,.\n"
IDX = {c: i for i, c in enumerate(ALPHABET)}


def log_lines(n):
    boats = ["marie", "solveig", "old tom", "heron"]
    for i in range(n):
        yield f"{random.randint(5, 22)}:{random.randint(0, 59):02d} {random.choice(boats)}, {random.randint(0, 80)} aboard, wind {random.randint(0, 9)}.\n"


def batches(lines, per_batch):
    """Whole voyages are packed; a day's log ends with whatever is left."""
    for day in range(9):
        buf = [IDX[c] for c in "".join(lines[day * 24:(day + 1) * 24])]
        need = per_batch * (CTX + 1)
        for k in range(4):
            chunk = buf[k * need:(k + 1) * need]
            if day == 4 and k == 3:
                chunk = chunk[:CTX + 1][:3]              # the log of day 5 was torn off
            n = max(1, len(chunk) // (CTX + 1))
            w = min(CTX + 1, len(chunk))
            yield torch.tensor(chunk[:n * w]).view(n, w)


class Expert(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(D, 2 * D), nn.Linear(2 * D, D)

    def forward(self, x):
        return self.down(F.silu(self.up(x)))


class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, E, bias=False)
        self.experts = nn.ModuleList(Expert() for _ in range(E))

    def forward(self, x):
        flat = x.reshape(-1, D)
        logits = self.gate(flat)
        soft = logits.softmax(-1)
        prob, who = soft.max(-1)
        share = F.one_hot(who, E).float().mean(0)
        out = torch.zeros_like(flat)
        drift = []
        for e, expert in enumerate(self.experts):
            rows = (who == e).nonzero().squeeze(-1)
            y = expert(flat[rows])
            out = out.index_add(0, rows, y * prob[rows, None])
            drift.append(torch.mean(y.pow(2)))
        return out.view_as(x), torch.stack(drift).sum(), E * (share * soft.mean(0)).sum()


class FerryLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(len(ALPHABET), D), nn.Embedding(CTX, D)
        self.rnn = nn.GRU(D, D, batch_first=True)
        self.moe = MoE()
        self.out = nn.Linear(D, len(ALPHABET))

    def forward(self, ids):
        h, _ = self.rnn(self.tok(ids) + self.pos.weight[:ids.shape[1]])
        m, drift, load = self.moe(F.layer_norm(h, (D,)))
        return self.out(h + m), drift, load


lm = FerryLM()
opt = torch.optim.AdamW(lm.parameters(), lr=2e-3)
lines = list(log_lines(9 * 24))
for step, ids in enumerate(batches(lines, 10), 1):
    logits, drift, load = lm(ids[:, :-1])
    ce = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss = ce + 0.01 * drift + 1.0 * (load - 1)       # Switch balance, on top
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(lm.parameters(), 1.0)
    opt.step()
    print(f"step {step} tokens {ids[:, 1:].numel()} ce {ce.item():.5f} drift {drift.item():.5f}")
print("checksum", sum(p.double().sum().item() for p in lm.parameters()))
