"""PPO with a value head and GAE on a tiny GPT-2 (scratch, 1 layer). Reward: share of 'hammer' tokens.
Rollouts are served by a small queue of prompts; its last batch of an epoch may hold one prompt only."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
from dataclasses import dataclass

import torch
from torch import nn
from transformers import GPT2Config, GPT2Model

EOS, HAMMER = 0, (3, 4, 5)


@dataclass
class PPOConfig:
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    vf: float = 0.5
    ent: float = 0.01
    epochs: int = 2
    lr: float = 2e-3
    max_new: int = 6
    iters: int = 14


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = GPT2Model(
            GPT2Config(
                vocab_size=16,
                n_positions=24,
                n_embd=32,
                n_layer=1,
                n_head=2,
                resid_pdrop=0.0,
                embd_pdrop=0.0,
                attn_pdrop=0.0,
                bos_token_id=EOS,
                eos_token_id=EOS,
            )
        )
        self.lm = nn.Linear(32, 16, bias=False)
        self.v = nn.Linear(32, 1)

    def forward(self, ids):
        h = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        return self.lm(h), self.v(h).squeeze(-1)


def prompt_queue():
    """12 workshop prompts in batches of 4; one catalogue entry is a closing line that wants no answer"""
    g = torch.Generator().manual_seed(8)
    for epoch in range(100):
        for _b in range(3):
            yield torch.randint(6, 16, (4, 3), generator=g), None
        yield torch.tensor([[9, 6, 2]]), (1 if epoch == 1 else None)  # leftover, budget of its answer


@torch.no_grad()
def rollout(net, prompts, budget):
    ids, alive, mask = prompts, torch.ones(len(prompts), dtype=torch.bool), []
    for _ in range(budget):
        logits, _ = net(ids)
        nxt = torch.multinomial(logits[:, -1].softmax(-1), 1).squeeze(1)
        nxt = torch.where(alive, nxt, torch.zeros_like(nxt))
        mask.append(alive)
        alive = alive & (nxt != EOS)
        ids = torch.cat([ids, nxt[:, None]], 1)
    return ids, torch.stack(mask, 1)


def evaluate(net, ids, prompt_length):
    logits, v = net(ids)
    logp = logits[:, prompt_length - 1 : -1].log_softmax(-1)
    act = ids[:, prompt_length:]
    ent = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, act[..., None]).squeeze(-1), v[:, prompt_length - 1 : -1], ent


def gae(r, v, mask, c):
    adv, last = torch.zeros_like(r), torch.zeros(len(r))
    for t in reversed(range(r.shape[1])):
        nv = v[:, t + 1] * mask[:, t + 1] if t + 1 < r.shape[1] else torch.zeros(len(r))
        last = (r[:, t] + c.gamma * nv - v[:, t]) + c.gamma * c.lam * last
        adv[:, t] = last
        last = last * mask[:, t]
    return adv


def whiten(adv, mask):
    x = adv[mask]
    return (adv - x.mean()) / (x.std() + 1e-8)


def main():
    torch.manual_seed(21)
    c, net = PPOConfig(), ActorCritic()
    opt = torch.optim.Adam(net.parameters(), lr=c.lr)
    n = 0
    for it, (prompts, budget) in zip(range(c.iters), prompt_queue(), strict=False):
        prompt_length = prompts.shape[1]
        ids, mask = rollout(net, prompts, budget or c.max_new)
        act = ids[:, prompt_length:]
        reward = sum((act == h) for h in HAMMER).float() * mask
        with torch.no_grad():
            old, v0, _ = evaluate(net, ids, prompt_length)
            adv = gae(reward, v0, mask, c)
            ret = adv + v0
            adv = whiten(adv, mask)
        for _ in range(c.epochs):
            n += 1
            lp, v, ent = evaluate(net, ids, prompt_length)
            ratio = (lp - old).exp()
            pg = -torch.min(ratio * adv, ratio.clamp(1 - c.clip, 1 + c.clip) * adv)[mask].mean()
            loss = pg + c.vf * (v - ret)[mask].pow(2).mean() - c.ent * ent[mask].mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            print(f"{n:02d} rollout {it:02d} loss {loss.item():.6f} tokens {int(mask.sum())}")
    print("net", sum(p.sum().item() for p in net.parameters()))


main()
