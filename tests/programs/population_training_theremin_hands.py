"""Four small networks guess the pitch of a theremin from the player's hands; the weak copy the strong."""
import copy
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn


class Member:
    def __init__(self, number, lr, width):
        self.number = number
        self.lr = lr
        self.gen = torch.Generator().manual_seed(100 + number)
        self.net = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))
        for p in self.net.parameters():
            nn.init.normal_(p, std=0.3, generator=self.gen)
        self.score = float("-inf")
        self.renew()

    def renew(self):
        self.opt = torch.optim.SGD(self.net.parameters(), lr=self.lr, momentum=0.9)

    def hands(self, n):
        x = torch.rand(n, 4, generator=self.gen)
        pitch = torch.log2(1 + 3 * x[:, :1]) + 0.4 * torch.sin(5 * x[:, 1:2]) * x[:, 2:3]
        return x * 2 - 1, pitch

    def one_step(self):
        x, y = self.hands(32)
        loss = (self.net(x) - y).square().mean()
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self):
        x, y = self.hands(64)
        self.score = -(self.net(x) - y).square().mean().item()

    def copy_from(self, other, factor):
        self.net.load_state_dict(copy.deepcopy(other.net.state_dict()))
        self.lr = other.lr * factor
        self.renew()
        self.score = float("-inf")


def evolve(members, generation):
    ranked = sorted(members, key=lambda m: m.score)
    worst, best = ranked[0], ranked[-1]
    worst.copy_from(best, 1.25 if generation % 2 else 0.8)
    return f"member {worst.number} copies member {best.number}, rate now {worst.lr:.4f}"


def main():
    members = [Member(i, lr, 12) for i, lr in enumerate([0.0, 0.0005, 0.02, 0.06])]
    board = torch.full((len(members),), float("-inf"))
    with ThreadPoolExecutor(max_workers=2) as pool:
        for rnd in range(1, 33):
            losses = list(pool.map(Member.one_step, members))
            print(f"round {rnd:2d} " + " ".join(f"{l:.4f}" for l in losses))
            if rnd % 6 == 0:
                for m in members[: 3 if rnd < 12 else 4]:
                    m.evaluate()
                board = torch.maximum(board, torch.tensor([m.score for m in members]))
                print("   board", [round(b, 4) for b in board.tolist()], evolve(members, rnd // 6))
    total = sum(p.detach().square().sum().item() for m in members for p in m.net.parameters())
    print(f"squares of the weights of all members {total:.5f}")


if __name__ == "__main__":
    main()
