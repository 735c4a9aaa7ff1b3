"""DPO on tavern replies with accuracy by length bucket. A bucket without a pair in the batch has no accuracy (nan)."""
import copy
import math
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(314)
torch.set_num_threads(1)
V, D, L = 72, 28, 18
EDGES = (4, 8, 12)


class Replies(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, D)
        self.pos = nn.Parameter(torch.randn(L, D) * 0.02)
        self.attn = nn.MultiheadAttention(D, 2, batch_first=True)
        self.ff = nn.Sequential(nn.LayerNorm(D), nn.Linear(D, 56), nn.GELU(), nn.Linear(56, D))
        self.out = nn.Linear(D, V)
        self.register_buffer("causal", torch.full((L, L), -math.inf).triu(1))

    def forward(self, ids):
        t = ids.shape[1]
        x = self.emb(ids) + self.pos[:t]
        x = x + self.attn(x, x, x, attn_mask=self.causal[:t, :t], need_weights=False)[0]
        return self.out(x + self.ff(x))


def sequence_logp(net, ids, length):
    lp = F.log_softmax(net(ids[:, :-1]), -1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    live = torch.arange(ids.shape[1] - 1)[None] < length[:, None]
    return torch.where(live, lp, 0.0).sum(-1)


def pair_batch(step, gen, n=6):
    # short replies first, long ones later (a curriculum by thirds)
    low, high = [(2, 8), (4, 12), (8, 17)][min(step // 14, 2)]
    length = torch.randint(low, high, (n,), generator=gen)
    good = torch.randint(0, V // 2, (n, L), generator=gen)
    bad = torch.randint(V // 3, V, (n, L), generator=gen)
    bad[:, :2] = good[:, :2]
    if step == 23:
        bad[:3] = good[:3]      # the same reply twice: no preference, loss log 2 for these
    return good, bad, length


def bucket_accuracy(margin, length):
    hits = defaultdict(list)
    for m, n in zip(margin.tolist(), length.tolist()):
        hits[sum(n >= e for e in EDGES)].append(float(m > 0))
    return [sum(hits[b]) / len(hits[b]) if hits[b] else math.nan for b in range(len(EDGES) + 1)]


policy = Replies()
ref = copy.deepcopy(policy).eval()
for p in ref.parameters():
    p.requires_grad_(False)
opt = torch.optim.AdamW(policy.parameters(), lr=5e-4, weight_decay=0.0)
gen = torch.Generator().manual_seed(8)
best = torch.tensor(-math.inf)

for step in range(42):
    good, bad, length = pair_batch(step, gen)
    chosen = sequence_logp(policy, good, length) - sequence_logp(ref, good, length)
    reject = sequence_logp(policy, bad, length) - sequence_logp(ref, bad, length)
    margin = chosen - reject
    loss = -F.logsigmoid(0.2 * margin).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    best = torch.maximum(best, margin.detach().mean())
    acc = " ".join(f"{a:.2f}" for a in bucket_accuracy(margin.detach(), length))
    print(f"{step + 1:3d} loss {loss.item():.6f} best margin {best.item():.4f} acc {acc}")
    if (step + 1) % 14 == 0:
        ref.load_state_dict(policy.state_dict())        # the reference follows after each third
print("weights", sum(p.double().sum().item() for p in policy.parameters()))
