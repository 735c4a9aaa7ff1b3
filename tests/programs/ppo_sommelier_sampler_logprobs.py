"""PPO over pairing suggestions. Rollouts come from a separate sampling server, which returns the log-prob of
every sampled token; we train on its dump. Token-level reward: small bonus per concrete wine word, scalar score
from the panel at the end of the answer, KL to the reference subtracted per token (k1)."""
import math
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, PAD, EOS = 40, 0, 1
WINE_WORDS = torch.tensor([7, 11, 19, 23])
torch.manual_seed(411)


@dataclass
class Knobs:
    iters: int = 24
    batch: int = 6
    length: int = 10
    inner: int = 1
    clip: float = 0.2
    kl: float = 0.02
    gamma: float = 1.0
    lam: float = 0.95
    lr: float = 3e-3
    # what the server writes where it did not keep a token in its top-k table
    lost_tokens: dict = field(default_factory=lambda: {13: (2, 4)})


class Policy(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, width)
        self.rnn = nn.GRU(width, width, batch_first=True)
        self.lm = nn.Linear(width, VOCAB)
        self.value = nn.Linear(width, 1)

    def forward(self, ids):
        h, _ = self.rnn(self.tok(ids))
        return self.lm(h), self.value(h).squeeze(-1)


def token_logp(logits, ids):
    return F.log_softmax(logits, -1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)


class SamplerClient:
    """Stands in for the HTTP client; the weights are pushed to the server each iteration."""

    MISSING = -9999.0     # the server's sentinel for 'logprob not available'

    def __init__(self, knobs):
        self.k = knobs
        self.gen = torch.Generator().manual_seed(5)

    @torch.no_grad()
    def rollout(self, policy, it):
        ids = torch.randint(2, VOCAB, (self.k.batch, 1), generator=self.gen)
        lps = []
        for _ in range(self.k.length):
            logits, _ = policy(ids)
            p = logits[:, -1].softmax(-1)
            nxt = torch.multinomial(p, 1, generator=self.gen)
            lps.append(p.gather(-1, nxt).log())
            ids = torch.cat([ids, nxt], 1)
        lp = torch.cat(lps, 1)
        if it in self.k.lost_tokens:
            b, t = self.k.lost_tokens[it]
            lp[b, t] = self.MISSING
        return ids, lp


def shaped_rewards(ids, old_lp, ref_lp, k):
    ans = ids[:, 1:]
    r = 0.1 * torch.isin(ans, WINE_WORDS).float()
    r[:, -1] += torch.where((ans == 11).any(1), 1.0, 0.2)
    return r - k.kl * (old_lp - ref_lp)


def gae(r, v, k):
    adv, run = torch.zeros_like(r), torch.zeros(r.size(0))
    for t in reversed(range(r.size(1))):
        nxt = v[:, t + 1] if t + 1 < r.size(1) else torch.zeros(r.size(0))
        run = r[:, t] + k.gamma * nxt - v[:, t] + k.gamma * k.lam * run
        adv[:, t] = run
    return adv, adv + v


def main():
    k = Knobs()
    policy, ref = Policy(), Policy()
    ref.load_state_dict(policy.state_dict())
    ref.requires_grad_(False)
    opt = torch.optim.Adam(policy.parameters(), lr=k.lr)
    client = SamplerClient(k)
    for it in range(1, k.iters + 1):
        ids, old_lp = client.rollout(policy, it)
        with torch.no_grad():
            ref_lp = token_logp(ref(ids[:, :-1])[0], ids[:, 1:])
            v = policy(ids[:, :-1])[1]
            adv, ret = gae(shaped_rewards(ids, old_lp, ref_lp, k), v, k)
            adv = (adv - adv.mean()) / (adv.std() + 1e-6)
        for _ in range(k.inner):
            logits, val = policy(ids[:, :-1])
            ratio = torch.exp(token_logp(logits, ids[:, 1:]) - old_lp)
            pg = -torch.min(ratio * adv, ratio.clamp(1 - k.clip, 1 + k.clip) * adv).mean()
            vf = F.smooth_l1_loss(val, ret)
            loss = pg + 0.5 * vf
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            opt.step()
        print(f"it {it:02d} loss {loss.item():+.6f} pg {pg.item():+.6f} vf {vf.item():.6f}")
    print("sum of weights", f"{math.fsum(p.double().sum().item() for p in policy.parameters()):.6f}")


main()
