# Hand-written DPO, no trainer.  Letters of beekeepers: which of two replies did the advisory service send?
# The policy is a GRU language model; the reference is a frozen copy.  Summed log-probabilities, beta 0.4.
import copy
import random

import torch
from torch import nn

torch.manual_seed(905)
torch.set_num_threads(1)
rng = random.Random(905)

V, PAD = 64, 0
BETA = 0.4
STEPS, PAIRS = 34, 6


class LetterLM(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.emb = nn.Embedding(V, d, padding_idx=PAD)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.out = nn.Linear(d, V)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.out(h)

    def seq_logp(self, ids, prompt_len):
        logp = self(ids[:, :-1]).log_softmax(-1)
        tgt = ids[:, 1:]
        tok = logp.gather(-1, tgt.unsqueeze(-1)).squeeze(-1)
        keep = (tgt != PAD) & (torch.arange(tgt.size(1)) >= prompt_len - 1)
        return (tok * keep).sum(-1)


def letter(lo, hi, n):
    return [rng.randrange(lo, hi) for _ in range(n)]


def pairs():
    """Advisory replies use the vocabulary 1..39, the form letters 25..63."""
    for k in range(STEPS * PAIRS):
        prompt = letter(1, V, 6)
        good = letter(1, 40, rng.randint(6, 14))
        bad = letter(25, V, rng.randint(6, 14))
        if k == 113:
            # the annual circular: typed out in full, and the volunteer ticked the wrong box
            good, bad = letter(40, V, 420), letter(1, 25, 8)
        yield prompt, good, bad


def pad(seqs):
    n = max(map(len, seqs))
    return torch.tensor([s + [PAD] * (n - len(s)) for s in seqs])


def batches(it, n):
    buf = []
    for p, g, b in it:
        buf.append((p + g, p + b))
        if len(buf) == n:
            yield pad([x for x, _ in buf]), pad([y for _, y in buf])
            buf = []


def dpo_loss(policy, ref, chosen, rejected):
    pc, pr = policy.seq_logp(chosen, 6), policy.seq_logp(rejected, 6)
    with torch.no_grad():
        rc, rr = ref.seq_logp(chosen, 6), ref.seq_logp(rejected, 6)
    h = (pc - rc) - (pr - rr)
    pref = torch.sigmoid(BETA * h)
    return -torch.log(pref).mean(), (h > 0).float().mean()


def main():
    policy = LetterLM()
    ref = copy.deepcopy(policy).requires_grad_(False).eval()
    opt = torch.optim.AdamW(policy.parameters(), lr=6e-3, betas=(0.9, 0.95), weight_decay=0.01)
    for step, (c, r) in enumerate(batches(pairs(), PAIRS), 1):
        loss, acc = dpo_loss(policy, ref, c, r)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        print(f"{step:3d} loss {loss.item():.6f} acc {acc.item():.3f}")
    with torch.no_grad():
        print("weights", f"{sum(p.double().sum() for p in policy.parameters()).item():.6f}")


main()
