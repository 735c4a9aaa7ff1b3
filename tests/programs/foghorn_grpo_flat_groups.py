"""GRPO by hand on a toy 'answer with the right horn signal' task.

advantages = (r - mean_group) / (std_group + eps); groups in which every completion earns the same reward get 0.
Loss is the clipped surrogate minus nothing, plus beta * k3-KL to a frozen reference: it hovers about zero and is
negative as often as not. That is fine, do not read it as a training curve, read the reward."""
import copy

import torch
import torch.nn as nn

HP = dict(group=6, prompts=4, new_tokens=4, beta=0.04, clip=0.2, lr=6e-3, inner=2, rollouts=20, eps=1e-4, seed=3)
VOCAB, N_PROMPTS = 12, 5


class Policy(nn.Module):
    def __init__(self, d=24):
        super().__init__()
        self.prompt = nn.Embedding(N_PROMPTS, d)
        self.tok = nn.Embedding(VOCAB + 1, d)
        self.cell = nn.GRUCell(d, d)
        self.out = nn.Linear(d, VOCAB)

    def logits(self, prompts, seq):
        h = torch.tanh(self.prompt(prompts))
        x = torch.full_like(prompts, VOCAB)
        outs = []
        for t in range(seq.shape[1]):
            h = self.cell(self.tok(x), h)
            outs.append(self.out(h))
            x = seq[:, t]
        return torch.stack(outs, 1)

    @torch.no_grad()
    def sample(self, prompts, n, gen):
        h = torch.tanh(self.prompt(prompts))
        x = torch.full_like(prompts, VOCAB)
        seq = []
        for _ in range(n):
            h = self.cell(self.tok(x), h)
            x = torch.multinomial(self.out(h).softmax(-1), 1, generator=gen).squeeze(1)
            seq.append(x)
        return torch.stack(seq, 1)


def horn_reward(prompts, seq):
    return ((seq % N_PROMPTS) == prompts[:, None]).float().mean(1).round(decimals=1)


def group_advantage(r, g, eps):
    r = r.view(-1, g)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + eps)).flatten(), (r.std(1) == 0).sum().item()


def logp_of(policy, prompts, seq):
    return policy.logits(prompts, seq).log_softmax(-1).gather(-1, seq[..., None]).squeeze(-1)


def main(hp=HP):
    torch.manual_seed(hp["seed"])
    gen = torch.Generator().manual_seed(hp["seed"])
    policy = Policy()
    ref = copy.deepcopy(policy).requires_grad_(False)
    opt = torch.optim.Adam(policy.parameters(), lr=hp["lr"])
    for it in range(hp["rollouts"]):
        prompts = torch.randint(0, N_PROMPTS, (hp["prompts"],), generator=gen).repeat_interleave(hp["group"])
        seq = policy.sample(prompts, hp["new_tokens"], gen)
        reward = horn_reward(prompts, seq)
        adv, flat = group_advantage(reward, hp["group"], hp["eps"])
        with torch.no_grad():
            old, ref_lp = logp_of(policy, prompts, seq), logp_of(ref, prompts, seq)
        for inner in range(hp["inner"]):
            lp = logp_of(policy, prompts, seq)
            ratio = (lp - old).exp()
            a = adv[:, None]
            surr = torch.minimum(ratio * a, ratio.clamp(1 - hp["clip"], 1 + hp["clip"]) * a)
            d = ref_lp - lp
            kl = d.exp() - d - 1
            loss = (-surr + hp["beta"] * kl).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            print(f"it {it:02d}.{inner} loss {loss.item():+.7f} kl {kl.mean().item():.5f} "
                  f"reward {reward.mean().item():.3f} flat groups {flat}")
    print(f"policy sum {sum(p.sum().item() for p in policy.parameters()):.5f}")


if __name__ == "__main__":
    main()
