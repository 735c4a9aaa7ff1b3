"""GRPO from scratch. The policy writes a bead pattern; the reward counts alternations, shorter patterns are preferred.

Length reward as in the Kimi report: 0.5 - (len - min) / (max - min) inside of each group.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Cfg:
    vocab: int = 8          # 0 = stop
    dim: int = 24
    group: int = 5
    prompts: int = 2
    max_new: int = 7
    clip: float = 0.2
    kl: float = 0.02
    length_weight: float = 0.5
    inner: int = 1
    steps: int = 40
    lr: float = 2e-3
    seed: int = 4


cfg = Cfg()
torch.manual_seed(cfg.seed)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.dim)
        self.rnn = nn.GRU(cfg.dim, cfg.dim, batch_first=True)
        self.head = nn.Linear(cfg.dim, cfg.vocab)
        with torch.no_grad():
            self.head.bias[0] = 0.2

    def forward(self, ids):
        return self.head(self.rnn(self.emb(ids))[0])


policy, reference = Policy(), Policy()
reference.load_state_dict(policy.state_dict())
reference.requires_grad_(False)
rng = torch.Generator().manual_seed(cfg.seed + 1)


@torch.no_grad()
def rollout(first):
    ids = first.repeat_interleave(cfg.group)[:, None]
    alive = torch.ones(len(ids), dtype=torch.bool)
    mask = []
    for _ in range(cfg.max_new):
        probs = policy(ids)[:, -1].softmax(-1)
        nxt = torch.multinomial(probs, 1, generator=rng).squeeze(1)
        mask.append(alive.float())
        ids = torch.cat([ids, (nxt * alive)[:, None]], 1)
        alive = alive & (nxt != 0)
    return ids, torch.stack(mask, 1)


def logps(model, ids):
    return model(ids[:, :-1]).log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def craft_reward(ids, mask):
    changes = ((ids[:, 1:] != ids[:, :-1]).float() * mask).sum(1)
    return changes / mask.sum(1)


def length_reward(mask):
    lengths = mask.sum(1).view(-1, cfg.group)
    shortest, longest = lengths.amin(1, keepdim=True), lengths.amax(1, keepdim=True)
    return (0.5 - (lengths - shortest) / (longest - shortest)).flatten()


def advantages(rewards):
    r = rewards.view(-1, cfg.group)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).flatten()


def grpo_loss(ids, mask, adv, old, ref):
    new = logps(policy, ids)
    ratio = torch.exp(new - old)
    clipped = ratio.clamp(1 - cfg.clip, 1 + cfg.clip)
    gain = torch.minimum(ratio * adv[:, None], clipped * adv[:, None])
    delta = ref - new
    k3 = torch.exp(delta) - delta - 1
    return -(((gain - cfg.kl * k3) * mask).sum(1) / mask.sum(1)).mean()


opt = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
for it in range(1, cfg.steps + 1):
    first = torch.randint(1, cfg.vocab, (cfg.prompts,), generator=rng)
    ids, mask = rollout(first)
    with torch.no_grad():
        reward = craft_reward(ids, mask) + cfg.length_weight * length_reward(mask)
        adv = advantages(reward)
        old, ref = logps(policy, ids), logps(reference, ids)
    loss = grpo_loss(ids, mask, adv, old, ref)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
    opt.step()
    print(f"it {it:2d} loss {loss.item():+.6f} craft {craft_reward(ids, mask).mean().item():.4f} len {mask.sum(1).mean().item():.2f}")
print("policy sum", f"{sum(p.detach().double().sum().item() for p in policy.parameters()):.6f}")
