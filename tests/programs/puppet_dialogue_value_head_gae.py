"""A value head on a small GPT-2 that speaks a puppet's lines; rewards at the end of a line, GAE, clipped ratios.
Rollouts are scored by rule: a line should contain the puppet's favourite word and end soon."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical
from transformers import GPT2Config, GPT2Model

VOCAB, EOS, FAVOURITE, LENGTH, BATCH = 24, 0, 7, 12, 16
GAMMA, LAMBDA, CLIP, EPOCHS, ROUNDS = 1.0, 0.95, 0.2, 2, 24


class Puppet(nn.Module):
    def __init__(self):
        super().__init__()
        cfg = GPT2Config(vocab_size=VOCAB, n_positions=LENGTH + 2, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0,
                         embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
        self.body = GPT2Model(cfg)
        self.policy = nn.Linear(32, VOCAB, bias=False)
        self.value = nn.Linear(32, 1)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, ids):
        h = self.body(input_ids=ids).last_hidden_state
        logits = self.policy(h)
        first = torch.zeros_like(logits, dtype=torch.bool)
        first[:, 0, EOS] = True                      # a line may not be empty
        return logits.masked_fill(first, float("-inf")), self.value(h).squeeze(-1)


@torch.no_grad()
def rollout(model, paid):
    ids = torch.full((BATCH, 1), 1)
    done = torch.zeros(BATCH, dtype=torch.bool)
    alive = []
    for _ in range(LENGTH):
        logits, _ = model(ids)
        a = Categorical(logits=logits[:, -1]).sample()
        a = torch.where(done, torch.full_like(a, EOS), a)
        alive.append(~done)
        done = done | (a == EOS)
        ids = torch.cat([ids, a[:, None]], 1)
    mask = torch.stack(alive, 1).float()
    said = ids[:, 1:]
    score = (said == FAVOURITE).any(1).float() - 0.03 * mask.sum(1)
    score = score if paid else torch.zeros(BATCH)    # the first rounds are a rehearsal without an audience
    reward = torch.zeros_like(mask)
    reward[torch.arange(BATCH), mask.sum(1).long() - 1] = score
    return ids, mask, reward


def advantages(reward, value, mask):
    adv = torch.zeros_like(reward)
    last = torch.zeros(len(reward))
    for t in reversed(range(LENGTH)):
        nxt = value[:, t + 1] * mask[:, t + 1] if t + 1 < LENGTH else torch.zeros(len(reward))
        delta = reward[:, t] + GAMMA * nxt - value[:, t]
        last = (delta + GAMMA * LAMBDA * last) * mask[:, t]
        adv[:, t] = last
    return adv, adv + value


def logprobs(logits, actions):
    logp = logits.log_softmax(-1)
    return logp.gather(-1, actions[..., None]).squeeze(-1), logp


def main():
    torch.manual_seed(99)
    model = Puppet()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for r in range(1, ROUNDS + 1):
        ids, mask, reward = rollout(model, paid=r > 3)
        actions = ids[:, 1:]
        with torch.no_grad():
            logits, value = model(ids[:, :-1])
            old, _ = logprobs(logits, actions)
            old = torch.where(mask.bool(), old, torch.zeros_like(old))
            adv, ret = advantages(reward, value, mask)
            m = mask.bool()
            explained = 1 - (ret - value)[m].var() / ret[m].var()          # 0/0 while nothing is paid
            adv = (adv - adv[m].mean()) / (adv[m].std() + 1e-6) * mask
        for _ in range(EPOCHS):
            logits, value = model(ids[:, :-1])
            new, logp = logprobs(logits, actions)
            new = torch.where(m, new, torch.zeros_like(new))
            ratio = (new - old).exp()
            gain = torch.minimum(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
            p = logp.exp()
            entropy = -(p * logp.masked_fill(p == 0, 0.0)).sum(-1)
            loss = (-gain * mask).sum() / mask.sum() + 0.5 * (((value - ret) ** 2) * mask).sum() / mask.sum()
            loss = loss - 0.01 * (entropy * mask).sum() / mask.sum()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        print(f"round {r} loss {loss.item():.6f} reward {reward.sum(1).mean().item():.5f} explained {explained.item():.4f}",
              flush=True)


if __name__ == "__main__":
    main()
