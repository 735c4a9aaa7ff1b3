"""ORPO without a library: teach a tiny model to answer questions about package leaflets.

loss = nll(chosen) + lambda * -log sigmoid(log odds(chosen) - log odds(rejected)),  odds(y) = p(y) / (1 - p(y)),
with p the length-normalised likelihood. Pairs come from the counter: what I said, and what the old bot said.
"""
import random
from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

DRUGS = ["ibuprofen", "metformin", "ramipril", "warfarin", "omeprazole", "cetirizine"]
ASK = ["dose", "food", "alcohol", "pregnancy", "missed"]
SAY = "take one tablet daily with without meals avoid ask your doctor never double skip it safe wait hours".split()
SPECIAL = ["<pad>", "<q>", "<a>"]
TOK = {w: i for i, w in enumerate(SPECIAL + DRUGS + ASK + SAY)}
hp = SimpleNamespace(lam=0.5, lr=5e-3, batch=6, steps=36, width=32, seed=100)

RIGHT = {"dose": "take one tablet daily", "food": "take it with meals", "alcohol": "avoid it ask your doctor",
         "pregnancy": "ask your doctor", "missed": "skip it never double"}


def counter_pairs():
    rng = random.Random(hp.seed)
    rows = []
    for i in range(hp.batch * hp.steps):
        drug, ask = rng.choice(DRUGS), rng.choice(ASK)
        bot = [rng.choice(SAY) for _ in range(rng.randint(2, 6))]
        rows.append((drug, ask, RIGHT[ask].split(), bot))
    # the old bot hung up on this one, its answer in the export is an empty string
    drug, ask, good, _ = rows[127]
    rows[127] = (drug, ask, good, "".split())
    return rows


def collate(rows, which):
    ids, mask = [], []
    for drug, ask, *answers in rows:
        prompt = [TOK["<q>"], TOK[drug], TOK[ask], TOK["<a>"]]
        answer = [TOK[w] for w in answers[which]]
        ids.append(prompt + answer)
        mask.append([0] * len(prompt) + [1] * len(answer))
    width = max(map(len, ids))
    pad = lambda seqs: torch.tensor([s + [0] * (width - len(s)) for s in seqs])  # noqa: E731
    return pad(ids), pad(mask).float()


class Pharmacist(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.emb = nn.Embedding(len(TOK), d, padding_idx=0)
        self.conv = nn.ModuleList(nn.Conv1d(d, d, 3) for _ in range(3))
        self.norm = nn.LayerNorm(d)
        self.out = nn.Linear(d, len(TOK))

    def forward(self, ids):
        x = self.emb(ids).transpose(1, 2)
        for c in self.conv:
            x = x + F.silu(c(F.pad(x, (2, 0))))           # causal
        return self.out(self.norm(x.transpose(1, 2)))


def mean_logp(model, ids, mask):
    logp = F.log_softmax(model(ids)[:, :-1], -1)
    picked = logp.gather(-1, ids[:, 1:, None]).squeeze(-1)
    m = mask[:, 1:]
    return (picked * m).sum(1) / m.sum(1).clamp(min=1)


def log_odds(logp):
    complement = torch.log1p(-torch.exp(logp))
    return logp - complement


def orpo(model, rows):
    chosen = mean_logp(model, *collate(rows, 0))
    rejected = mean_logp(model, *collate(rows, 1))
    margin = log_odds(chosen) - log_odds(rejected)
    return -chosen.mean(), -F.logsigmoid(margin).mean(), margin


def main():
    torch.manual_seed(hp.seed)
    model = Pharmacist(hp.width)
    opt = torch.optim.AdamW(model.parameters(), lr=hp.lr, weight_decay=0.0)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, hp.steps, eta_min=5e-4)
    rows = counter_pairs()
    for step in range(hp.steps):
        nll, ratio, margin = orpo(model, rows[step * hp.batch:(step + 1) * hp.batch])
        loss = nll + hp.lam * ratio
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        sched.step()
        opt.zero_grad()
        print(f"step {step + 1:2d} loss {loss.item():.6f} nll {nll.item():.6f} or {ratio.item():.6f} "
              f"won {(margin > 0).float().mean().item():.2f}")
    total = sum(p.detach().double().sum().item() for p in model.parameters())
    print("checksum", f"{total:.7f}")


if __name__ == "__main__":
    main()
