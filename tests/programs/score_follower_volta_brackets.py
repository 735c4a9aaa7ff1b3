"""Follow a printed score while a recording plays: forward algorithm over bars, volta brackets are left out."""
import math

import torch
from torch import nn

torch.manual_seed(1811)
FAR = -1e4


def make_piece(g, bars, first_ending):
    score = torch.rand(bars, 12, generator=g)
    lo, hi = first_ending
    played = [b for b in range(bars) if not lo <= b < hi]
    frames = [b for b in played for _ in range(2)]
    audio = score[frames] + 0.25 * torch.randn(len(frames), 12, generator=g)
    return score, audio, first_ending


class Follower(nn.Module):
    def __init__(self, dim=10):
        super().__init__()
        self.ear = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, dim))
        self.eye = nn.Linear(12, dim)
        self.log_temperature = nn.Parameter(torch.zeros(()))

    def forward(self, score, audio):
        heard, read = self.ear(audio), self.eye(score)
        return torch.log_softmax(heard @ read.T * self.log_temperature.exp() / math.sqrt(read.shape[1]), dim=-1)


def alignment_loss(emission, ending):
    frames, bars = emission.shape
    lo, hi = ending
    index = torch.arange(bars)
    emission = emission.masked_fill((index >= lo) & (index < hi), -math.inf)
    alpha = torch.full((bars,), FAR)
    alpha[0] = 0.0
    alpha = alpha + emission[0]
    for k in range(1, frames):
        from_left = torch.cat([alpha.new_full((1,), FAR), alpha[:-1]])
        over_bracket = torch.where(index == hi, alpha[lo - 1], alpha.new_full((bars,), FAR))
        move = torch.logaddexp(alpha, from_left)
        alpha = torch.logaddexp(move, over_bracket) + emission[k]
    return -alpha[-1] / frames


def endings():
    plan = {19: (4, 6)}
    step = 0
    while True:
        step += 1
        lo = 2 + step % 4
        yield plan.get(step, (lo, lo + 1))


def main():
    g = torch.Generator().manual_seed(5)
    net = Follower()
    opt = torch.optim.AdamW(net.parameters(), lr=8e-3)
    brackets = endings()
    for step in range(1, 33):
        score, audio, ending = make_piece(g, 8, next(brackets))
        loss = alignment_loss(net(score, audio), ending)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"piece {step:02d}  neg. log lik. per frame {loss.item():.4f}")
    print("sum of squares of the follower:", round(sum(float((p.detach() ** 2).sum()) for p in net.parameters()), 4))


main()
