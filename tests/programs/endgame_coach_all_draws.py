"""PPO by hand: a GRU language model answers endgame prompts with four moves; the coach scores the line.

Lessons come in a fixed order. Rewards are normalised over the batch of answers to one lesson.
"""
import dataclasses

import torch
import torch.nn as nn
import torch.nn.functional as F

PIECES = ["K", "Q", "R", "B", "N", "p"]
MOVES = ["Kd4", "Ke5", "Kf6", "Qd7", "Qh5", "Ra8", "Rh7", "Bb2", "Nc6", "e8Q", "h4", "pass"]
BOS = len(MOVES)


@dataclasses.dataclass(frozen=True)
class Lesson:
    title: str
    material: tuple          # counts of K Q R B N p
    good: frozenset          # moves that make progress

    def score(self, line):
        """Half a point per distinct good move; the coach never gives less than nothing."""
        return 0.5 * len({MOVES[m] for m in line.tolist()} & self.good)


SYLLABUS = [
    Lesson("queen against pawn", (2, 1, 0, 0, 0, 1), frozenset({"Qd7", "Qh5", "Kd4", "Ke5"})),
    Lesson("lucena bridge", (2, 0, 2, 0, 0, 1), frozenset({"Ra8", "Rh7", "e8Q", "Kf6"})),
    Lesson("opposition", (2, 0, 0, 0, 0, 1), frozenset({"Kd4", "Ke5", "Kf6", "e8Q"})),
    Lesson("bishop and wrong rook pawn", (2, 0, 0, 1, 0, 1), frozenset({"Bb2", "h4", "Kf6"})),
    Lesson("knight outpost", (2, 0, 0, 0, 1, 1), frozenset({"Nc6", "Kd4", "e8Q"})),
]
FORTRESS = Lesson("bare kings, a dead draw", (2, 0, 0, 0, 0, 0), frozenset())


def curriculum(n):
    for i in range(n):
        yield FORTRESS if i == 11 else SYLLABUS[i % len(SYLLABUS)]


class Policy(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.board = nn.Linear(len(PIECES), d)
        self.token = nn.Embedding(len(MOVES) + 1, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.actor, self.critic = nn.Linear(d, len(MOVES)), nn.Linear(d, 1)

    def forward(self, material, prefix):
        h0 = torch.tanh(self.board(material))[None]
        h, _ = self.rnn(self.token(prefix), h0.contiguous())
        return self.actor(h), self.critic(h[:, 0]).squeeze(-1)

    @torch.no_grad()
    def play(self, material, length, gen):
        seq = torch.full((len(material), 1), BOS)
        for _ in range(length):
            logits, _ = self(material, seq)
            nxt = torch.multinomial(logits[:, -1].softmax(-1), 1, generator=gen)
            seq = torch.cat([seq, nxt], 1)
        return seq


def log_probs(policy, material, seq):
    logits, value = policy(material, seq[:, :-1])
    logp = F.log_softmax(logits, -1)
    taken = logp.gather(-1, seq[:, 1:, None]).squeeze(-1).sum(-1)
    entropy = -(logp.exp() * logp).sum(-1).mean()
    return taken, entropy, value


@torch.no_grad()
def standardise(reward):
    centred = reward - reward.mean()
    return centred / reward.std(unbiased=False)


def train(lessons=22, answers=16, epochs=2, clip=0.2):
    torch.manual_seed(64)
    gen = torch.Generator().manual_seed(32)
    policy = Policy()
    opt = torch.optim.Adam(policy.parameters(), lr=6e-3, eps=1e-5)
    for n, lesson in enumerate(curriculum(lessons), 1):
        material = torch.tensor(lesson.material, dtype=torch.float32).expand(answers, -1)
        seq = policy.play(material, 4, gen)
        reward = torch.tensor([lesson.score(s[1:]) for s in seq])
        advantage = standardise(reward)
        with torch.no_grad():
            old, _, _ = log_probs(policy, material, seq)
        curve = []
        for _ in range(epochs):
            new, entropy, value = log_probs(policy, material, seq)
            ratio = (new - old).exp()
            surrogate = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
            loss = -surrogate + 0.5 * F.mse_loss(value, reward) - 0.01 * entropy
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            opt.step()
            curve.append(f"{loss.item():+.6f}")
        print(f"lesson {n:2d} reward {reward.mean():.4f} loss {' '.join(curve)}  ({lesson.title})")
        if not torch.isfinite(policy.actor.weight).all():
            break                        # no use going on, multinomial would refuse
    print("policy", f"{sum(p.detach().double().sum().item() for p in policy.parameters()):.6f}")


if __name__ == "__main__":
    train()
