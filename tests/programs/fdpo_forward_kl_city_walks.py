"""f-DPO (Wang et al. 2023) with the forward KL: the implicit reward is -beta / u with u = pi / pi_ref.
Preference pairs: answers of a city guide, the rejected ones ramble.  Functional: parameters live in a dict."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.func import functional_call

random.seed(5)
torch.manual_seed(5)
BETA, LR, BATCH, STEPS, MAX_NEW = 0.1, 9e-4, 8, 30, 320

SIGHTS = ["the old mint", "the fish hall", "the water tower", "the glass arcade", "the tannery", "the canal lock"]
GOOD = ["turn left at the bakery and cross the square", "take tram four to the last stop", "it is behind the library"]
BAD = ["well you know it is well you know somewhere", "i think i think it may be open or may not be",
       "well it is a long story you know"]
vocab = {w: i + 2 for i, w in enumerate(sorted(set(" ".join(SIGHTS + GOOD + BAD + ["where is"]).split())))}
PAD, EOS = 0, 1
V = len(vocab) + 2


def ids(text):
    return [vocab[w] for w in text.split()]


def build_pairs(n):
    pairs = []
    for i in range(n):
        prompt = ids("where is " + random.choice(SIGHTS))
        good, bad = ids(random.choice(GOOD)) + [EOS], ids(random.choice(BAD)) + [EOS]
        if i == 54:   # greedy sample of the old model, cut at max_new_tokens
            bad = (ids("i think you know") * MAX_NEW)[:MAX_NEW]
        pairs.append((prompt, good, bad))
    return pairs


class Guide(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(V, d)
        self.gru = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, V)

    def forward(self, x):
        return self.out(self.gru(self.emb(x))[0])


def pack(prompts, answers):
    width = max(len(p) + len(a) for p, a in zip(prompts, answers))
    x = torch.full((len(prompts), width), PAD)
    m = torch.zeros(len(prompts), width)
    for r, (p, a) in enumerate(zip(prompts, answers)):
        x[r, :len(p) + len(a)] = torch.tensor(p + a)
        m[r, len(p):len(p) + len(a)] = 1.0
    return x, m


def sequence_logp(params, x, m):
    logits = functional_call(net, params, (x[:, :-1],))
    lp = F.log_softmax(logits, -1).gather(-1, x[:, 1:, None]).squeeze(-1)
    return (lp * m[:, 1:]).sum(-1)


def f_dpo(log_w, log_l):
    u_w, u_l = log_w.exp(), log_l.exp()
    margin = BETA * (u_l.reciprocal() - u_w.reciprocal())
    return -F.logsigmoid(margin).mean(), margin


net = Guide()
pairs = build_pairs(160)
policy = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}

reference = {k: v.detach().clone() for k, v in policy.items()}
opt = torch.optim.AdamW(policy.values(), lr=LR, weight_decay=0.0)
order = []
for step in range(1, STEPS + 1):
    if len(order) < BATCH:
        order = random.sample(range(len(pairs)), len(pairs))
    pick, order = [pairs[i] for i in order[:BATCH]], order[BATCH:]
    prompts = [p for p, _, _ in pick]
    xw, mw = pack(prompts, [g for _, g, _ in pick])
    xl, ml = pack(prompts, [b for _, _, b in pick])
    with torch.no_grad():
        ref_w, ref_l = sequence_logp(reference, xw, mw), sequence_logp(reference, xl, ml)
    loss, margin = f_dpo(sequence_logp(policy, xw, mw) - ref_w, sequence_logp(policy, xl, ml) - ref_l)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"{step} loss {loss.item():.4f} accuracy {(margin > 0).float().mean().item():.2f}", flush=True)

print("policy norm", torch.cat([p.detach().flatten() for p in policy.values()]).double().norm().item())
