"""
GRPO by hand: a GRU policy spells five-letter answers to crossword clues; the reward is the share of right letters.
Answers are cheap at first and dear later on (the "editor" reads them), so the group shrinks as the policy gets better.
"""
import argparse

import torch
from torch import nn

ANSWERS = ["abode", "cacao", "decaf", "faded", "beach", "head", "cabbage"[:5], "adage"]
LETTERS = "abcdefgh"
WIDTH = 5


def to_ids(word):
    # letters that the little alphabet lacks are spelt with their neighbour
    return [min(ord(c) - ord("a"), len(LETTERS) - 1) for c in word.ljust(WIDTH, "a")]


class Speller(nn.Module):
    def __init__(self, clues, hidden=48):
        super().__init__()
        self.clue = nn.Embedding(clues, hidden)
        self.letter = nn.Embedding(len(LETTERS) + 1, hidden)
        self.cell = nn.GRUCell(hidden, hidden)
        self.out = nn.Linear(hidden, len(LETTERS))

    def forward(self, clues, letters):
        """Logits of each letter, given those before it."""
        state = torch.tanh(self.clue(clues))
        start = torch.full_like(letters[:, :1], len(LETTERS))
        before = torch.cat([start, letters[:, :-1]], 1)
        logits = []
        for i in range(WIDTH):
            state = self.cell(self.letter(before[:, i]), state)
            logits.append(self.out(state))
        return torch.stack(logits, 1)

    @torch.no_grad()
    def spell(self, clues, generator):
        letters = torch.zeros(len(clues), WIDTH, dtype=torch.long)
        for i in range(WIDTH):
            logits = self(clues, letters)[:, i]
            noise = torch.rand(logits.shape, generator=generator).clamp_min(1e-9)
            letters[:, i] = (logits - torch.log(-torch.log(noise))).argmax(-1)
        return letters


def group_size(step, first, halve_every):
    """16, 8, 4, 2, ... answers per clue."""
    return max(1, first >> (step // halve_every))


def group_advantages(rewards, eps=1e-4):
    """rewards: clues x answers of that clue"""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + eps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--first-group", type=int, default=16)
    parser.add_argument("--halve-every", type=int, default=8)
    parser.add_argument("--clip", type=float, default=0.2)
    parser.add_argument("--kl", type=float, default=0.02)
    parser.add_argument("--lr", type=float, default=5e-3)
    args = parser.parse_args()

    torch.manual_seed(6)
    generator = torch.Generator().manual_seed(17)
    truth = torch.tensor([to_ids(w) for w in ANSWERS])
    policy, reference = Speller(len(ANSWERS)), Speller(len(ANSWERS))
    reference.load_state_dict(policy.state_dict())
    reference.requires_grad_(False)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=args.lr, weight_decay=0.01)

    for step in range(1, args.steps + 1):
        group = group_size(step, args.first_group, args.halve_every)
        clues = torch.arange(len(ANSWERS)).repeat_interleave(group)
        letters = policy.spell(clues, generator)
        rewards = (letters == truth[clues]).float().mean(1)
        advantages = group_advantages(rewards.view(-1, group)).view(-1)

        logps = torch.log_softmax(policy(clues, letters), -1).gather(-1, letters[..., None]).squeeze(-1)
        with torch.no_grad():
            ref = torch.log_softmax(reference(clues, letters), -1).gather(-1, letters[..., None]).squeeze(-1)
        ratio = torch.exp(logps - logps.detach())
        clipped = ratio.clamp(1 - args.clip, 1 + args.clip)
        gain = torch.minimum(ratio * advantages[:, None], clipped * advantages[:, None])
        k3 = torch.exp(ref - logps) - (ref - logps) - 1
        loss = -(gain - args.kl * k3).mean()

        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        print(f"step {step:3d} group {group:2d} reward {rewards.mean().item():.4f} loss {loss.item():+.6f}", flush=True)

    print(f"{sum(p.detach().abs().sum().item() for p in policy.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
