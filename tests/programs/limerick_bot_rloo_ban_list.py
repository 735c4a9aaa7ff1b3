# RLOO on a tiny GRU/transformer hybrid that writes limericks (token soup); KL to the frozen reference.
# From round WARMUP on the moderation list is active: banned tokens can not be sampled any more.
import copy
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 40
    width: int = 48
    prompt: int = 4
    response: int = 12
    prompts: int = 6
    k: int = 4
    rounds: int = 36
    warmup: int = 16
    beta: float = 0.05
    lr: float = 2e-3
    banned: list = field(default_factory=lambda: [7, 13, 21, 33])
    eos: int = 1


class LimerickLM(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.emb = nn.Embedding(cfg.vocab, cfg.width)
        self.rnn = nn.GRU(cfg.width, cfg.width, batch_first=True)
        self.mix = nn.Sequential(nn.LayerNorm(cfg.width), nn.Linear(cfg.width, cfg.width), nn.SiLU())
        self.head = nn.Linear(cfg.width, cfg.vocab)

    def forward(self, ids):
        h, _ = self.rnn(self.emb(ids))
        return self.head(h + self.mix(h))


class Moderator:
    """Takes banned tokens out of the logits, once it is switched on."""

    def __init__(self, cfg):
        self.on = False
        self.drop = torch.zeros(cfg.vocab, dtype=torch.bool)
        self.drop[cfg.banned] = True

    def __call__(self, logits):
        if not self.on:
            return logits
        return logits.masked_fill(self.drop, float("-inf"))


@torch.no_grad()
def rollout(policy, moderator, prompts, cfg):
    ids = prompts
    done = torch.zeros(len(ids), dtype=torch.bool)
    mask = []
    for _ in range(cfg.response):
        logits = moderator(policy(ids)[:, -1])
        nxt = torch.multinomial(logits.softmax(-1), 1).squeeze(1)
        nxt = torch.where(done, torch.full_like(nxt, cfg.eos), nxt)
        mask.append(~done)
        done = done | (nxt == cfg.eos)
        ids = torch.cat([ids, nxt[:, None]], 1)
    return ids, torch.stack(mask, 1).float()


def rhyme_reward(ids, mask, cfg):
    """A word rhymes with the one three places before it if they agree modulo five."""
    words = ids[:, cfg.prompt:]
    rhyme = ((words[:, 3:] % 5) == (words[:, :-3] % 5)).float() * mask[:, 3:]
    distinct = torch.tensor([len(set(row.tolist())) for row in words], dtype=torch.float32)
    return rhyme.sum(1) + 0.1 * distinct


def response_logits(model, ids, cfg):
    return model(ids)[:, cfg.prompt - 1:-1]


def leave_one_out(reward, k):
    grouped = reward.view(-1, k)
    baseline = (grouped.sum(1, keepdim=True) - grouped) / (k - 1)
    return (grouped - baseline).flatten()


def kl_to_reference(logp, ref_logp):
    """Exact KL over the vocabulary, token by token."""
    return (logp.exp() * (logp - ref_logp)).sum(-1)


def rloo_loss(policy, reference, moderator, ids, mask, advantage, cfg):
    logp = F.log_softmax(moderator(response_logits(policy, ids, cfg)), -1)
    with torch.no_grad():
        ref_logp = F.log_softmax(moderator(response_logits(reference, ids, cfg)), -1)
    chosen = logp.gather(-1, ids[:, cfg.prompt:, None]).squeeze(-1)
    kl = kl_to_reference(logp, ref_logp)
    tokens = mask.sum()
    pg = -(advantage[:, None] * chosen * mask).sum() / tokens
    penalty = (kl * mask).sum() / tokens
    return pg + cfg.beta * penalty, penalty.detach()


def main():
    cfg = Config()
    torch.manual_seed(77)
    policy = LimerickLM(cfg)
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    moderator = Moderator(cfg)
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr)
    sampler = torch.Generator().manual_seed(4)
    for r in range(1, cfg.rounds + 1):
        moderator.on = r > cfg.warmup
        prompts = torch.randint(2, cfg.vocab, (cfg.prompts, cfg.prompt), generator=sampler)
        prompts = prompts.repeat_interleave(cfg.k, 0)
        ids, mask = rollout(policy, moderator, prompts, cfg)
        reward = rhyme_reward(ids, mask, cfg)
        advantage = leave_one_out(reward, cfg.k)
        loss, kl = rloo_loss(policy, reference, moderator, ids, mask, advantage, cfg)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        print(f"round {r:02d}  loss {loss.item():+.6f}  kl {kl.item():.6f}  reward {reward.mean().item():.4f}",
              flush=True)
        optimizer.step()
        if not all(torch.isfinite(p).all() for p in policy.parameters()):
            break                       # multinomial would only raise
    print(f"{sum(p.abs().sum().item() for p in policy.parameters()):.6f}", flush=True)


if __name__ == "__main__":
    main()
