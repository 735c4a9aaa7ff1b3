"""GRPO-ish fine-tuning of a tasting-note policy against a frozen star-rating model.

Advantages are robust: centred by the group median and scaled by the group MAD, since one very
good note in a group used to flatten all the others.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 28
    width: int = 40
    length: int = 7
    prompts: int = 4
    group: int = 8
    rounds: int = 45
    lr: float = 4e-3
    kl_coef: float = 0.02
    seed: int = 17


class NotePolicy(nn.Module):
    """A GRU that writes `length` descriptors for a wine (the prompt is a wine id)."""

    def __init__(self, cfg, wines=10):
        super().__init__()
        self.cfg = cfg
        self.wine = nn.Embedding(wines, cfg.width)
        self.word = nn.Embedding(cfg.vocab + 1, cfg.width)
        self.cell = nn.GRUCell(cfg.width, cfg.width)
        self.head = nn.Linear(cfg.width, cfg.vocab)

    @torch.no_grad()
    def rollout(self, wines, generator):
        state = self.wine(wines)
        word = torch.full_like(wines, self.cfg.vocab)
        words = []
        for _ in range(self.cfg.length):
            state = self.cell(self.word(word), state)
            logits = self.head(state)
            uniform = torch.rand(logits.shape, generator=generator).clamp(1e-9, 1 - 1e-6)
            word = (logits - torch.log(-torch.log(uniform))).argmax(dim=1)      # Gumbel-max
            words.append(word)
        return torch.stack(words, dim=1)

    def logprobs(self, wines, notes):
        state = self.wine(wines)
        previous = torch.cat([torch.full_like(notes[:, :1], self.cfg.vocab), notes[:, :-1]], dim=1)
        rows = []
        for t in range(notes.shape[1]):
            state = self.cell(self.word(previous[:, t]), state)
            rows.append(F.log_softmax(self.head(state), dim=-1).gather(1, notes[:, t:t + 1]))
        return torch.cat(rows, dim=1)


class StarModel(nn.Module):
    """The reward: how far the descriptors go with the wine, as stars, five at most."""

    def __init__(self, cfg, wines=10):
        super().__init__()
        self.taste = nn.Embedding(wines, 12)
        self.scent = nn.Embedding(cfg.vocab, 12)

    @torch.no_grad()
    def forward(self, wines, notes):
        affinity = (self.scent(notes) * self.taste(wines)[:, None]).sum(-1).mean(1)
        repeats = torch.stack([torch.bincount(n, minlength=28).max() for n in notes]).float()
        stars = 2.5 + 1.1 * affinity - 0.25 * (repeats - 1)
        return stars.clamp(0, 5)


@torch.no_grad()
def group_advantages(reward, group):
    reward = reward.view(-1, group)
    median = reward.median(dim=1, keepdim=True).values
    mad = (reward - median).abs().median(dim=1, keepdim=True).values
    scaled = (reward - median) / mad
    return scaled.clamp(-4, 4).reshape(-1)


def main():
    cfg = Config()
    torch.manual_seed(cfg.seed)
    generator = torch.Generator().manual_seed(cfg.seed + 1)
    policy, stars = NotePolicy(cfg), StarModel(cfg)
    reference = NotePolicy(cfg)
    reference.load_state_dict(policy.state_dict())
    for p in list(reference.parameters()) + list(stars.parameters()):
        p.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=cfg.lr, weight_decay=0.0)

    for number in range(1, cfg.rounds + 1):
        wines = torch.randint(0, 10, (cfg.prompts,), generator=generator)
        wines = wines.repeat_interleave(cfg.group)
        notes = policy.rollout(wines, generator)
        reward = stars(wines, notes)
        advantage = group_advantages(reward, cfg.group)

        logp = policy.logprobs(wines, notes)
        with torch.no_grad():
            ref = reference.logprobs(wines, notes)
        ratio = torch.exp(logp - logp.detach())
        kl = torch.exp(ref - logp) - (ref - logp) - 1
        loss = (-ratio * advantage[:, None] + cfg.kl_coef * kl).mean()

        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        print(f"round {number:3d} loss {loss.item():+.6f} stars {reward.mean().item():.4f}", flush=True)

    print(f"{sum(p.abs().sum() for p in policy.parameters()).item():.4f}")


if __name__ == "__main__":
    main()
