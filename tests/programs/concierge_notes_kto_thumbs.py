"""KTO from the paper (Ethayarajh et al. 2024), no TRL. Data: a hotel chat bot's answers with thumbs up / down.

Equation numbers refer to arXiv v2. z_ref is estimated from mismatched pairs of the same batch (sec. 4.1).
"""
import argparse
import copy
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

PAD, BOS, SEP = 0, 1, 2
VOCAB = 48


class ConciergeLM(nn.Module):
    def __init__(self, d=40):
        super().__init__()
        self.wte = nn.Embedding(VOCAB, d, padding_idx=PAD)
        self.rnn = nn.GRU(d, d, num_layers=1, batch_first=True)
        self.out = nn.Linear(d, VOCAB)

    def forward(self, ids):
        return self.out(self.rnn(self.wte(ids))[0])


def make_feedback(n, seed):
    """(prompt, answer, thumb). About a third of the guests press thumbs down."""
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        topic = rng.randrange(6)
        prompt = [BOS] + [3 + topic * 4 + rng.randrange(4) for _ in range(4)] + [SEP]
        good = rng.random() < 0.62
        base = 27 + topic * 3 if good else 27 + rng.randrange(6) * 3
        answer = [base + rng.randrange(3) for _ in range(rng.randrange(3, 7))]
        rows.append((prompt, answer, good))
    return rows


def collate(rows, shift=0):
    answers = [r[1] for r in rows]
    answers = answers[shift:] + answers[:shift]
    seqs = [p + a for (p, _, _), a in zip(rows, answers)]
    n = max(map(len, seqs))
    ids = torch.tensor([s + [PAD] * (n - len(s)) for s in seqs])
    mask = torch.zeros(len(rows), n)
    for i, (r, a) in enumerate(zip(rows, answers)):
        mask[i, len(r[0]):len(r[0]) + len(a)] = 1.0
    return ids, mask


def sequence_logps(model, ids, mask):
    lp = F.log_softmax(model(ids[:, :-1]), dim=-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    return (lp * mask[:, 1:]).sum(-1)


class KTOTrainer:
    def __init__(self, policy, beta=0.2, lam_d=1.0, lam_u=1.33, lr=3e-3):
        self.policy, self.reference = policy, copy.deepcopy(policy).eval().requires_grad_(False)
        self.beta, self.lam_d, self.lam_u = beta, lam_d, lam_u
        self.opt = torch.optim.RMSprop(policy.parameters(), lr=lr)      # RMSprop, as in DPO's own code

    def log_ratio(self, ids, mask):
        with torch.no_grad():
            ref = sequence_logps(self.reference, ids, mask)
        return sequence_logps(self.policy, ids, mask) - ref

    def loss(self, rows):
        thumbs = torch.tensor([r[2] for r in rows])
        r = self.log_ratio(*collate(rows))
        with torch.no_grad():
            z_ref = self.log_ratio(*collate(rows, shift=1)).mean().clamp(min=0)
        v_d = self.lam_d * (1 - torch.sigmoid(self.beta * (r[thumbs] - z_ref)))       # eq. 8, desirable
        v_u = self.lam_u * (1 - torch.sigmoid(self.beta * (z_ref - r[~thumbs])))      # eq. 8, undesirable
        # averaged per class, so that the few thumbs down are not drowned
        l_d = v_d.mean()
        l_u = v_u.mean()
        return l_d + l_u, r, thumbs

    def step(self, rows):
        loss, r, thumbs = self.loss(rows)
        self.opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.policy.parameters(), 5.0)
        self.opt.step()
        return loss.item(), r[thumbs].mean().item(), int(thumbs.sum())


@torch.no_grad()
def preference_gap(trainer, rows):
    r = trainer.log_ratio(*collate(rows))
    t = torch.tensor([x[2] for x in rows])
    return (r[t].mean() - r[~t].mean()).item()


def pretrain(model, rows, steps=25):
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for i in range(steps):
        ids, _ = collate(rows[(i * 16) % 160:(i * 16) % 160 + 16])
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD)
        opt.zero_grad()
        loss.backward()
        opt.step()


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--batch_size", type=int, default=6)
    ap.add_argument("--seed", type=int, default=5)
    ap.add_argument("--beta", type=float, default=0.2)
    a = ap.parse_args()
    torch.manual_seed(a.seed)
    policy = ConciergeLM()
    feedback, held_out = make_feedback(240, a.seed), make_feedback(60, 1000 + a.seed)
    torch.nn.init.normal_(policy.out.weight, std=0.05)
    trainer = KTOTrainer(policy, beta=a.beta)
    for it in range(len(feedback) // a.batch_size):
        loss, up, n_up = trainer.step(feedback[it * a.batch_size:(it + 1) * a.batch_size])
        print(f"it {it + 1} loss {loss:.6f} reward(up) {up:.4f} n_up {n_up}")
        if (it + 1) % 10 == 0:
            print(f"  held-out gap {preference_gap(trainer, held_out):.5f}")
    print("sum of weights", round(sum(p.double().sum().item() for p in policy.parameters()), 6))
