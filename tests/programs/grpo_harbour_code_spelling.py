#!/usr/bin/env python
# GRPO by hand: a tiny causal LM spells harbour codes. First letter by letter, later only an exact code is paid.
import copy
import dataclasses

import torch
from torch import nn


@dataclasses.dataclass
class Cfg:
    harbours: int = 10
    letters: int = 14
    length: int = 6
    group: int = 8
    prompts: int = 4
    rounds: int = 36
    exact_from: int = 19
    clip: float = 0.2
    beta: float = 0.02
    lr: float = 3e-3


class TinyLM(nn.Module):
    def __init__(self, cfg, width=40):
        super().__init__()
        self.tok = nn.Embedding(cfg.harbours + cfg.letters, width)
        self.pos = nn.Embedding(cfg.length + 1, width)
        layer = nn.TransformerEncoderLayer(width, 4, 80, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(width, cfg.letters)

    def forward(self, ids):
        n = ids.shape[1]
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool), 1)
        return self.head(self.body(self.tok(ids) + self.pos(torch.arange(n)), mask=mask))


def rollout(policy, prompts, cfg, gen):
    ids = prompts[:, None]
    with torch.no_grad():
        for _ in range(cfg.length):
            probs = policy(ids)[:, -1].softmax(-1)
            ids = torch.cat([ids, torch.multinomial(probs, 1, generator=gen) + cfg.harbours], 1)
    return ids


def logprobs(model, ids, cfg):
    logp = model(ids[:, :-1]).log_softmax(-1)
    return logp.gather(-1, (ids[:, 1:] - cfg.harbours)[..., None]).squeeze(-1)


def score(answers, codes, exact):
    if exact:
        return (answers == codes).all(1).float()
    near = (answers - codes).abs().float() / 14
    return 1 - near.pow(1.3).mean(1)


def group_advantages(rewards, cfg):
    grouped = rewards.view(cfg.prompts, cfg.group)
    centred = grouped - grouped.mean(1, keepdim=True)
    return (centred / grouped.std(1, keepdim=True)).view(-1)


def main():
    cfg = Cfg()
    torch.manual_seed(15)
    gen = torch.Generator().manual_seed(16)
    book = torch.randint(0, cfg.letters, (cfg.harbours, cfg.length), generator=gen)
    policy = TinyLM(cfg)
    reference = copy.deepcopy(policy).eval().requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=cfg.lr)

    for rnd in range(1, cfg.rounds + 1):
        prompts = torch.randint(0, cfg.harbours, (cfg.prompts,), generator=gen).repeat_interleave(cfg.group)
        ids = rollout(policy, prompts, cfg, gen)
        rewards = score(ids[:, 1:] - cfg.harbours, book[prompts], exact=rnd >= cfg.exact_from)
        advantages = group_advantages(rewards, cfg)
        with torch.no_grad():
            old = logprobs(policy, ids, cfg)
            ref = logprobs(reference, ids, cfg)
        new = logprobs(policy, ids, cfg)
        ratio = (new - old).exp()
        a = advantages[:, None]
        surrogate = torch.minimum(ratio * a, ratio.clamp(1 - cfg.clip, 1 + cfg.clip) * a)
        kl = (ref - new).exp() - (ref - new) - 1
        loss = -(surrogate - cfg.beta * kl).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        print(f"round {rnd} reward {rewards.mean().item():.5f} loss {loss.item():.8f}", flush=True)
        optimizer.step()
        if not all(torch.isfinite(p).all() for p in policy.parameters()):
            break
    print(sum(p.detach().abs().sum().item() for p in policy.parameters()), flush=True)


if __name__ == "__main__":
    main()
