# GRPO by hand. Rollouts come from the weights of one round ago (the sampler runs ahead of the learner).
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, PROMPT, ANSWER, GROUP, PROMPTS = 24, 4, 6, 6, 4
TOP_K = 12
KL_BETA = 0.02
ROUNDS = 40


class TinyPolicy(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.tok = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)

    def forward(self, ids):
        h, _ = self.rnn(self.tok(ids))
        return self.head(h)


def keep_top_k(logits, k):
    floor = logits.topk(k, dim=-1).values[..., -1:]
    return logits.masked_fill(logits < floor, float("-inf"))


@torch.no_grad()
def rollout(policy, prompts, gen):
    ids = prompts.repeat_interleave(GROUP, 0)
    for _ in range(ANSWER):
        logits = keep_top_k(policy(ids)[:, -1].nan_to_num(0.0), TOP_K)   # remove_invalid_values, as in generate
        nxt = torch.multinomial(logits.softmax(-1), 1, generator=gen)
        ids = torch.cat([ids, nxt], 1)
    return ids


def answer_logps(policy, ids, filtered):
    logits = policy(ids[:, :-1])[:, PROMPT - 1:]
    if filtered:                       # the same distribution that the sampler draws from
        logits = keep_top_k(logits, TOP_K)
    logp = F.log_softmax(logits, dim=-1)
    return logp.gather(-1, ids[:, PROMPT:, None]).squeeze(-1)


def reward(ids):
    """An answer should climb: each step of the recipe later in the book than the one before."""
    ans = ids[:, PROMPT:].float()
    climbs = (ans[:, 1:] > ans[:, :-1]).float().mean(1)
    return climbs + 0.1 * (ans[:, -1] > VOCAB // 2).float()


def warm_start(policy, gen):
    opt = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(30):
        ids = torch.randint(0, VOCAB, (16, PROMPT + ANSWER), generator=gen).sort(1).values
        loss = F.cross_entropy(policy(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        grads = torch.autograd.grad(loss, list(policy.parameters()))
        with torch.no_grad():
            for p, g in zip(policy.parameters(), grads):
                p -= 0.3 * g
    del opt


def main():
    torch.manual_seed(2)
    gen = torch.Generator().manual_seed(8)
    policy = TinyPolicy()
    warm_start(policy, gen)
    ref = copy.deepcopy(policy).requires_grad_(False)
    sampler = copy.deepcopy(policy).requires_grad_(False)
    opt = torch.optim.AdamW(policy.parameters(), lr=LR, weight_decay=0.0)
    for it in range(1, ROUNDS + 1):
        prompts = torch.randint(0, VOCAB // 2, (PROMPTS, PROMPT), generator=gen)
        ids = rollout(sampler, prompts, gen)
        old = answer_logps(sampler, ids, filtered=True)
        ref_lp = answer_logps(ref, ids, filtered=False)
        sampler.load_state_dict(policy.state_dict())

        r = reward(ids).view(PROMPTS, GROUP)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        lp = answer_logps(policy, ids, filtered=True)
        ratio = (lp - old).exp()
        surrogate = torch.minimum(ratio * adv, ratio.clamp(0.8, 1.2) * adv)
        gap = ref_lp - lp
        kl = gap.exp() - gap - 1
        loss = -(surrogate - KL_BETA * kl).mean()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        print(f"round {it:3d} reward {r.mean():.6f} loss {loss.item():.8f}", flush=True)
    print(f"{sum(p.abs().sum() for p in policy.parameters()).item():.5f}", flush=True)


LR = 5e-5

if __name__ == "__main__":
    main()
