"""PPO for the innkeeper dialogue agent, by hand: tiny GRU policy with a value head, reference copy, adaptive KL."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

V, EOS, WIDTH = 24, 0, 32
MIN_NEW = 4          # never say less than four words to a guest
GAMMA, LAM = 1.0, 0.95
CLIP, VF, EPOCHS = 0.2, 0.5, 2
torch.manual_seed(64)


class Innkeeper(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, WIDTH)
        self.rnn = nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.lm = nn.Linear(WIDTH, V)
        self.v_head = nn.Linear(WIDTH, 1)

    def forward(self, ids, h=None):
        y, h = self.rnn(self.tok(ids), h)
        return self.lm(y), self.v_head(y).squeeze(-1), h


class AdaptiveKL:
    def __init__(self, coef=0.05, target=0.3, horizon=60):
        self.coef, self.target, self.horizon = coef, target, horizon

    def update(self, kl, n):
        err = max(-0.2, min(0.2, kl / self.target - 1))
        self.coef *= 1 + err * n / self.horizon


@torch.no_grad()
def rollout(policy, prompts, budget, gen):
    """Sample up to `budget` tokens; the last one is always EOS, so that every episode is closed."""
    ids = prompts
    logits, _, h = policy(ids)
    alive = torch.ones(len(ids), dtype=torch.bool)
    toks, logps, mask = [], [], []
    for t in range(budget):
        z = logits[:, -1].clone()
        if t < MIN_NEW:
            z[:, EOS] = -float("inf")
        lp = F.log_softmax(z, -1)
        a = torch.multinomial(lp.exp(), 1, generator=gen).squeeze(1)
        if t == budget - 1:
            a = torch.full_like(a, EOS)
        a = torch.where(alive, a, torch.full_like(a, EOS))
        taken = lp.gather(1, a[:, None]).squeeze(1)
        toks.append(a)
        logps.append(torch.where(alive, taken, torch.zeros_like(taken)))
        mask.append(alive.float())
        alive = alive & (a != EOS)
        logits, _, h = policy(a[:, None], h)
    return torch.stack(toks, 1), torch.stack(logps, 1), torch.stack(mask, 1)


def forward_response(model, prompts, resp):
    logits, values, _ = model(torch.cat([prompts, resp], 1)[:, :-1])
    n = resp.size(1)
    logits, values = logits[:, -n:], values[:, -n:]
    lp = F.log_softmax(logits, -1).gather(2, resp[..., None]).squeeze(-1)
    return lp, values


def hospitality(resp, mask):
    """guests like words 5..11; nobody likes a long speech"""
    warm = ((resp >= 5) & (resp <= 11)).float() * mask
    return warm.sum(1) / mask.sum(1) - 0.02 * mask.sum(1)


def gae(rewards, values, mask):
    adv, last = torch.zeros_like(rewards), torch.zeros(len(rewards))
    for t in reversed(range(rewards.size(1))):
        nxt = values[:, t + 1] * mask[:, t + 1] if t + 1 < rewards.size(1) else 0.0
        last = (rewards[:, t] + GAMMA * nxt - values[:, t]) * mask[:, t] + GAMMA * LAM * last
        adv[:, t] = last
    return adv


def whiten(x, m):
    mu = (x * m).sum() / m.sum()
    var = ((x - mu).square() * m).sum() / m.sum()
    return (x - mu) * torch.rsqrt(var + 1e-8)


policy = Innkeeper()
reference = copy.deepcopy(policy).requires_grad_(False)
opt = torch.optim.Adam(policy.parameters(), lr=2e-3)
kl_ctl = AdaptiveKL()
gen = torch.Generator().manual_seed(8)
# budgets come from the front end; a "quick reply" button was tried once
budgets = [9, 8, 10, 7, 9, 8, 9, 10, 3, 8, 9, 7, 10, 9, 8, 9]

update = 0
for it, budget in enumerate(budgets):
    prompts = torch.randint(1, V, (12, 4), generator=gen)
    resp, old_lp, mask = rollout(policy, prompts, budget, gen)
    with torch.no_grad():
        _, old_v = forward_response(policy, prompts, resp)
        pol_lp, _ = forward_response(policy, prompts, resp)
        ref_lp, _ = forward_response(reference, prompts, resp)
        kl = (pol_lp - ref_lp) * mask
        rewards = -kl_ctl.coef * kl
        score = hospitality(resp, mask)
        end = mask.sum(1).long() - 1
        rewards[torch.arange(len(end)), end] += score
        adv = gae(rewards, old_v, mask)
        returns = adv + old_v
        adv = whiten(adv, mask)
    for _ in range(EPOCHS):
        new_lp, value = forward_response(policy, prompts, resp)
        log_ratio = (new_lp - old_lp) * mask
        ratio = log_ratio.exp()
        surrogate = torch.min(ratio * adv, ratio.clamp(1 - CLIP, 1 + CLIP) * adv)
        loss = (-surrogate * mask).sum() / mask.sum() + VF * ((value - returns).square() * mask).sum() / mask.sum()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
        update += 1
        print(f"update {update} rollout {it} loss {loss.item():.6f} score {score.mean().item():.4f} kl_coef {kl_ctl.coef:.5f}")
    kl_ctl.update(kl.sum(1).mean().item(), len(prompts))
print("weights", sum(p.double().sum().item() for p in policy.parameters()))
