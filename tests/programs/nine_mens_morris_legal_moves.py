"""Nine men's morris: learn to imitate a tutor that closes mills whenever it can."""
import math
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

MILLS = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (9, 10, 11), (12, 13, 14), (15, 16, 17), (18, 19, 20), (21, 22, 23),
         (0, 9, 21), (3, 10, 18), (6, 11, 15), (1, 4, 7), (16, 19, 22), (8, 12, 17), (5, 13, 20), (2, 14, 23)]
NEAR = {p: {q for m in MILLS for a, b in zip(m, m[1:]) for q in (a, b) if p in (a, b)} - {p} for p in range(24)}


class Referee(nn.Module):
    """Forbids what the rules forbid."""

    def forward(self, logits, legal):
        return logits.masked_fill(~legal, -math.inf)


class Player(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(50, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU())
        self.policy = nn.Linear(48, 24)
        self.value = nn.Linear(48, 1)
        self.referee = Referee()

    def forward(self, board, legal):
        h = self.trunk(board)
        return self.referee(self.policy(h), legal), torch.tanh(self.value(h)).squeeze(-1)


def position(men, flying):
    board = np.zeros(24, dtype=int)
    for side in (1, -1):
        for spot in random.sample([i for i in range(24) if board[i] == 0], men):
            board[spot] = side
    free = {i for i in range(24) if board[i] == 0}
    own = [i for i in range(24) if board[i] == 1]
    legal = free if flying else free & {q for p in own for q in NEAR[p]}
    best, choice = -math.inf, -1
    for spot in sorted(legal):
        worth = max(sum(board[q] == 1 for q in m if q != spot) for m in MILLS if spot in m) + 0.01 * len(NEAR[spot])
        if worth > best:
            best, choice = worth, spot
    return board, [i in legal for i in range(24)], choice, (best if legal else -2.0) / 2


def batch(men, flying, n=32):
    boards, legal, choice, worth = zip(*[position(men, flying) for _ in range(n)])
    boards = np.stack(boards)
    x = np.concatenate([boards == 1, boards == -1, np.full((n, 1), men / 9), np.full((n, 1), flying)], 1)
    return (torch.tensor(x, dtype=torch.float32), torch.tensor(legal), torch.tensor(choice),
            torch.tensor(worth, dtype=torch.float32) - 0.5)


def train():
    random.seed(4)
    torch.manual_seed(4)
    player = Player()
    opt = torch.optim.Adam(player.parameters(), lr=4e-3)
    record, since = math.inf, 0
    for turn in range(1, 37):
        men, flying = ((6, True), (11, False), (3, True))[(turn - 1) // 12]
        x, legal, choice, worth = batch(men, flying)
        logits, v = player(x, legal)
        can_move = choice >= 0
        policy_loss = F.cross_entropy(logits[can_move], choice[can_move])
        logp = F.log_softmax(logits[can_move], dim=-1)
        entropy = -(logp.exp() * logp.masked_fill(~legal[can_move], 0.0)).sum(-1).mean()
        loss = policy_loss + F.mse_loss(v, worth) - 0.01 * entropy
        gap = loss.item() - record
        record, since = (loss.item(), 0) if gap < 0 else (record, since + 1)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(player.parameters(), math.inf)
        opt.step()
        print(f"turn {turn} men {men} blocked {int((~can_move).sum())} loss {loss.item():.4f} against record {gap:+.4f} ({since})")
    print("weights squared and summed:", sum((p ** 2).sum().item() for p in player.parameters()))


train()
