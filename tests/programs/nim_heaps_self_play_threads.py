import copy
import queue
import threading

import torch
from torch import nn
from torch.nn import functional as F

HEAPS, MOST = 3, 3
MOVES = [(h, k) for h in range(HEAPS) for k in range(1, MOST + 1)]


def legal(board):
    return torch.tensor([board[h] >= k for h, k in MOVES])


def play(board, move):
    h, k = MOVES[move]
    return tuple(n - k if i == h else n for i, n in enumerate(board))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(HEAPS * (MOST + 1), 32), nn.ReLU())
        self.policy, self.value = nn.Linear(32, len(MOVES)), nn.Linear(32, 1)

    def forward(self, boards):
        h = self.trunk(F.one_hot(boards, MOST + 1).flatten(1).float())
        return self.policy(h), torch.tanh(self.value(h)).squeeze(1)


class SelfPlay(threading.Thread):
    def __init__(self, number):
        super().__init__(daemon=True)
        self.orders, self.games = queue.Queue(), queue.Queue()
        self.dice = torch.Generator().manual_seed(100 + number)

    def search(self, net, board, visits=16):
        ok = legal(board)
        n, w = torch.zeros(len(MOVES)), torch.zeros(len(MOVES))
        logits, _ = net(torch.tensor([board]))
        prior = logits[0].masked_fill(~ok, float("-inf")).softmax(0)
        for i in range(1, visits + 1):
            bound = torch.where(n > 0, w / n + prior * i ** 0.5, torch.full_like(n, float("inf")))
            move = int(bound.masked_fill(~ok, float("-inf")).argmax())
            after = play(board, move)
            w[move] += 1.0 if sum(after) == 0 else -float(net(torch.tensor([after]))[1])
            n[move] += 1
        return n / n.sum(), ok

    @torch.no_grad()
    def run(self):
        for net in iter(self.orders.get, None):
            board, seen = tuple(torch.randint(1, MOST + 1, (HEAPS,), generator=self.dice).tolist()), []
            while sum(board):
                pi, ok = self.search(net, board)
                seen.append((board, pi, ok))
                board = play(board, int(torch.multinomial(pi, 1, generator=self.dice)))
            result = [1.0 if (len(seen) - i) % 2 else -1.0 for i in range(len(seen))]
            self.games.put([(b, p, o, r) for (b, p, o), r in zip(seen, result)])


def main():
    torch.manual_seed(21)
    net = Net()
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    workers = [SelfPlay(i) for i in range(2)]
    for w in workers:
        w.start()
    buffer, steps = [], 0
    for round_ in range(1, 36):
        frozen = copy.deepcopy(net)
        for w in workers:
            w.orders.put(frozen)
        for w in workers:
            buffer += w.games.get()
        if len(buffer) < 32:
            print(f"round {round_} only {len(buffer)} positions")
            continue
        boards, pi, ok, result = zip(*buffer[-96:])
        ok, pi = torch.stack(ok), torch.stack(pi)
        logits, value = net(torch.tensor(boards))
        log_p = logits.masked_fill(~ok, float("-inf")).log_softmax(1)
        policy_loss = -(pi * torch.where(ok, log_p, torch.zeros(()))).sum(1).mean()
        loss = policy_loss + F.mse_loss(value, torch.tensor(result))
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps += 1
        print(f"round {round_} step {steps} loss {loss.item():.4f} policy {policy_loss.item():.4f} floor {log_p.min().item()}")
    for w in workers:
        w.orders.put(None)
    print("sum of squares of the player", round(sum(p.square().sum().item() for p in net.parameters()), 4))


main()
