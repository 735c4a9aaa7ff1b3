"""GRPO written by hand: a tiny decoder learns two-digit sums from a rule-based reward, soroban style.

Group-relative advantages, clipped ratio, k3 estimate of KL(policy || reference), reference renewed now and then.
"""
import argparse
import copy
from collections import namedtuple

import torch
import torch.nn as nn
import torch.nn.functional as F

PLUS, EQ, END, BOS = 10, 11, 12, 13
Rollout = namedtuple("Rollout", "ids logp_old logp_ref adv keep")


class Pupil(nn.Module):
    def __init__(self, d=48, n=12):
        super().__init__()
        self.emb, self.pos = nn.Embedding(14, d), nn.Parameter(torch.randn(n, d) * 0.1)
        self.enc = nn.TransformerEncoderLayer(d, 4, 96, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(d, 14)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.full((n, n), float("-inf")).triu(1)
        logits = self.head(self.enc(self.emb(ids) + self.pos[:n], src_mask=mask))
        banned = torch.zeros(14)
        banned[[PLUS, EQ, BOS]] = float("-inf")          # never sampled in an answer
        return logits + banned


def token_logps(model, ids, n_prompt):
    lp = F.log_softmax(model(ids)[:, n_prompt - 1:-1], -1)
    return lp.gather(-1, ids[:, n_prompt:, None]).squeeze(-1)


@torch.no_grad()
def sample(model, prompts, n_new, gen):
    ids = prompts
    for _ in range(n_new):
        p = F.softmax(model(ids)[:, -1], -1)
        ids = torch.cat([ids, torch.multinomial(p, 1, generator=gen)], 1)
    return ids


def reward(ids, n_prompt, sums):
    """1 for the right last digit, half a point for an answer that ends; 0 otherwise."""
    out = ids[:, n_prompt:]
    right = (out[:, 0] == sums % 10).float()
    ended = (out == END).any(1).float()
    return right + 0.5 * ended, right.bool()


def rollout(policy, ref, args, gen):
    a = torch.randint(0, 5, (args.prompts,), generator=gen)
    b = torch.randint(0, 5, (args.prompts,), generator=gen)
    prompt = torch.stack([torch.full_like(a, BOS), a, torch.full_like(a, PLUS), b, torch.full_like(a, EQ)], 1)
    prompt, sums = prompt.repeat_interleave(args.group, 0), (a + b).repeat_interleave(args.group)
    n = prompt.shape[1]
    ids = sample(policy, prompt, args.new_tokens, gen)
    rew, right = reward(ids, n, sums)
    g = rew.view(args.prompts, args.group)
    adv = (g - g.mean(1, keepdim=True)) / (g.std(1, keepdim=True) + 1e-4)
    ends = (ids[:, n:] == END).float()
    keep = ((ends.cumsum(1) - ends) == 0).float()        # tokens up to and including the first END
    with torch.no_grad():
        r = Rollout(ids, token_logps(policy, ids, n), token_logps(ref, ids, n), adv.reshape(-1, 1), keep)
    stats = {"reward": rew.mean().item(),
             "len_right": keep.sum(1)[right].mean().item(),             # nan while nobody is right
             "flat_groups": int((g.std(1) == 0).sum())}
    return r, n, stats


def grpo_loss(policy, r, n, args):
    lp = token_logps(policy, r.ids, n)
    ratio = torch.exp(lp - r.logp_old)
    surr = torch.minimum(ratio * r.adv, ratio.clamp(1 - args.clip, 1 + args.clip) * r.adv)
    delta = r.logp_ref - lp
    kl = delta.exp() - delta - 1
    per_seq = ((args.beta * kl - surr) * r.keep).sum(1) / r.keep.sum(1)
    return per_seq.mean(), (kl * r.keep).sum() / r.keep.sum()


def train(args):
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    policy = Pupil()
    ref = copy.deepcopy(policy).requires_grad_(False)
    opt = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=0.0)
    for it in range(args.iterations):
        r, n, stats = rollout(policy, ref, args, gen)
        losses = []
        for _ in range(args.inner_epochs):
            loss, kl = grpo_loss(policy, r, n, args)
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
            losses.append(f"{loss.item():+.3e}")
        print(it, "loss", *losses, f"kl {kl.item():.5f}", *(f"{k} {v:.4g}" for k, v in stats.items()))
        if (it + 1) % args.renew_ref == 0:
            ref.load_state_dict(policy.state_dict())
    print("weights", f"{sum(p.double().sum().item() for p in policy.parameters()):.6f}")


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    for name, default in dict(iterations=30, inner_epochs=2, prompts=4, group=6, new_tokens=3, renew_ref=10, seed=8).items():
        ap.add_argument("--" + name, type=int, default=default)
    for name, default in dict(lr=2e-3, clip=0.2, beta=0.04).items():
        ap.add_argument("--" + name, type=float, default=default)
    train(ap.parse_args())
