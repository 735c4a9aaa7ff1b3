"""
GRPO by hand: a small policy throws digits until it stops; the sum shall come near the checkout.
Right answers that are shorter than the usual right answer of their group earn more.
"""
from dataclasses import dataclass, field

import torch
import torch.nn as nn
import torch.nn.functional as F

STOP, MAX_LEN, GROUP = 10, 6, 16


@dataclass
class Checkout:
    target: int
    tolerance: int


@dataclass
class Settings:
    lr: float = 3e-3
    clip: float = 0.2
    inner: int = 1
    seed: int = 180
    prompts_per_step: int = 2
    board: list = field(default_factory=list)


class Thrower(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.goal = nn.Linear(1, dim)
        self.digit = nn.Embedding(11, dim)
        self.cell = nn.GRUCell(dim, dim)
        self.head = nn.Linear(dim, 11)

    def logits(self, target, tokens):
        """Logits for every position, tokens are those thrown (teacher forcing)."""
        h = torch.tanh(self.goal(torch.full((len(tokens), 1), target / 30.0)))
        out = [self.head(h)]
        for t in range(tokens.size(1) - 1):
            h = self.cell(self.digit(tokens[:, t]), h)
            out.append(self.head(h))
        return torch.stack(out, 1)


@torch.no_grad()
def rollout(policy, target, gen):
    tokens = torch.full((GROUP, MAX_LEN), STOP)
    alive = torch.ones(GROUP, dtype=torch.bool)
    for t in range(MAX_LEN):
        step_logits = policy.logits(target, tokens[:, :t + 1])[:, t]
        gumbel = -torch.log(-torch.log(torch.rand(GROUP, 11, generator=gen).clamp(1e-6, 1 - 1e-6)))
        tokens[:, t] = torch.where(alive, (step_logits + gumbel).argmax(-1), STOP)
        alive &= tokens[:, t] != STOP
    return tokens


def score(tokens, checkout):
    thrown = tokens != STOP
    lengths = thrown.sum(1).float() + 1
    total = (tokens * thrown).sum(1)
    right = (total - checkout.target).abs() <= checkout.tolerance
    usual = lengths[right].mean()
    reward = right.float() * (usual / lengths).clamp(max=2.0)
    return reward, right


def group_advantage(reward):
    return (reward - reward.mean()) / (reward.std() + 1e-4)


def logprobs(policy, target, tokens):
    logp = F.log_softmax(policy.logits(target, tokens), -1)
    return logp.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def surrogate(policy, old, checkout, tokens, advantage, clip):
    logp = logprobs(policy, checkout.target, tokens)
    ratio = torch.exp(logp - old)
    first_stop = (tokens == STOP).cumsum(1) <= 1
    gain = torch.minimum(ratio * advantage[:, None], ratio.clamp(1 - clip, 1 + clip) * advantage[:, None])
    return -(gain * first_stop).sum() / first_stop.sum()


def run(s: Settings):
    torch.manual_seed(s.seed)
    gen = torch.Generator().manual_seed(s.seed)
    policy = Thrower()
    opt = torch.optim.Adam(policy.parameters(), lr=s.lr)
    for step, checkouts in enumerate(s.board, 1):
        losses, hits = [], 0
        for checkout in checkouts:
            tokens = rollout(policy, checkout.target, gen)
            reward, right = score(tokens, checkout)
            hits += int(right.sum())
            with torch.no_grad():
                old = logprobs(policy, checkout.target, tokens)
            losses.append(surrogate(policy, old, checkout, tokens, group_advantage(reward), s.clip))
        loss = torch.stack(losses).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"round {step:02d}  loss {loss.item():+.7f}  hits {hits}/{GROUP * len(checkouts)}")
    print("policy sum", sum(p.detach().double().sum().item() for p in policy.parameters()))


if __name__ == "__main__":
    g = torch.Generator().manual_seed(3)
    board = [[Checkout(int(torch.randint(6, 20, (1,), generator=g)), 14) for _ in range(2)] for _ in range(32)]
    board[18][1] = Checkout(target=170, tolerance=14)  # the famous maximum checkout
    run(Settings(board=board))
