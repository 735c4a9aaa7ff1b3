"""Double DQN on a one-dimensional peg solitaire.  Illegal moves are worth -inf, in the greedy
choice as in the target; positions without a move end the game and never look at the -inf."""
import copy
import random
from collections import deque

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
torch.set_num_threads(1)
HOLES = 8


def start():
    board = [1] * HOLES
    board[random.randrange(HOLES)] = 0
    return tuple(board)


def legal(board):
    moves = [False] * (2 * HOLES)
    for i in range(HOLES):
        for k, d in enumerate((-1, 1)):
            over, to = i + d, i + 2 * d
            if 0 <= to < HOLES and board[i] and board[over] and not board[to]:
                moves[2 * i + k] = True
    return moves


def play(board, move):
    i, d = move // 2, (-1, 1)[move % 2]
    new = list(board)
    new[i] = new[i + d] = 0
    new[i + 2 * d] = 1
    return tuple(new)


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(HOLES, 48), nn.ReLU(), nn.Linear(48, 2 * HOLES))


def masked(values, mask):
    return values.masked_fill(~mask, float("-inf"))


online = Net()
target = copy.deepcopy(online).requires_grad_(False)
opt = torch.optim.Adam(online.parameters(), lr=2e-3, amsgrad=True)
replay = deque(maxlen=2000)
board, games, updates, lowest = start(), 0, 0, float("inf")
while updates < 50:
    for _ in range(8):
        mask = legal(board)
        if random.random() < 0.3:
            move = random.choice([m for m, ok in enumerate(mask) if ok])
        else:
            with torch.no_grad():
                q = masked(online(torch.tensor(board).float()), torch.tensor(mask))
            move = int(q.argmax())
        after = play(board, move)
        over = not any(legal(after))
        reward = 1.0 + (HOLES - sum(after) if over else 0.0)
        replay.append((board, move, reward, after, legal(after), over))
        if over:
            games += 1
            lowest = min(lowest, sum(after))
        board = start() if over else after
    if len(replay) < 64:
        continue
    s, a, r, s2, m2, done = zip(*random.sample(list(replay), 64))
    s, s2 = torch.tensor(s).float(), torch.tensor(s2).float()
    a, r, m2, done = torch.tensor(a), torch.tensor(r), torch.tensor(m2), torch.tensor(done)
    with torch.no_grad():
        best = masked(online(s2), m2).argmax(1, keepdim=True)
        future = masked(target(s2), m2).gather(1, best).squeeze(1)     # -inf where the game is over
        goal = torch.where(done, r, r + 0.95 * future)
    chosen = online(s).gather(1, a[:, None]).squeeze(1)
    loss = nn.functional.smooth_l1_loss(chosen, goal, reduction="sum")
    opt.zero_grad()
    loss.backward()
    opt.step()
    updates += 1
    with torch.no_grad():
        for slow, fast in zip(target.parameters(), online.parameters()):
            slow.lerp_(fast, 0.02)
    print(f"update {updates:02d} loss {loss.item():9.4f} games {games:3d} fewest pegs {lowest}")
