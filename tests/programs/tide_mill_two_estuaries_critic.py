# ruff: noqa: RUF012
"""Advantage actor-critic for the sluice of a tide mill. Each process plays its own estuary;
gradients are averaged by hand after the backward.   torchrun --standalone --nproc_per_node 2 ..."""

import math

import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical


class TideMill:
    """State: pond level, sea level, tide phase. Actions: shut, half, open.
    An episode ends after twelve turns, or as soon as the pond is over the dam."""

    DAM = 2.2
    # highest water of the day by estuary, in metres over the sill; day 14 of the east is the storm
    SPRINGS = {0: [1.0, 1.1, 1.2, 1.3, 1.2, 1.1, 1.0], 1: [0.9, 1.0, 1.0, 1.1, 1.2, 1.1, 1.0]}

    def __init__(self, estuary):
        self.estuary = estuary

    def reset(self, day):
        self.high = self.SPRINGS[self.estuary][day % 7]
        self.pond = 0.5 * self.high
        if self.estuary == 1 and day == 14:
            self.pond = 2.6  # the surge stood in the pond before the miller was up
        self.turn = 0
        return self.look()

    def sea(self):
        return self.high * math.sin(self.turn * math.pi / 6)

    def look(self):
        angle = self.turn * math.pi / 6
        return torch.tensor([self.pond, self.sea(), math.sin(angle), math.cos(angle)])

    def act(self, a):
        gate = 0.5 * a
        flow = gate * (self.sea() - self.pond) * 0.6
        self.pond += flow
        milled = max(0.0, -flow) * self.pond  # only water that leaves turns the wheel
        self.turn += 1
        over = self.pond > self.DAM
        reward = milled - (3.0 if over else 0.0)
        return self.look(), reward, over or self.turn >= 12


class Miller(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, hidden), nn.Tanh())
        self.policy = nn.Linear(hidden, 3)
        self.value = nn.Linear(hidden, 1)

    def forward(self, s):
        h = self.body(s)
        return Categorical(logits=self.policy(h)), self.value(h).squeeze(-1)


def play(env, miller, day, gamma=0.95):
    s, done = env.reset(day), False
    states, actions, rewards = [], [], []
    while not done:
        with torch.no_grad():
            pi, _ = miller(s)
            a = pi.sample()
        states.append(s)
        actions.append(a)
        s, r, done = env.act(a.item())
        rewards.append(r)
    returns, run = [], 0.0
    for r in reversed(rewards):
        run = r + gamma * run
        returns.insert(0, run)
    return torch.stack(states), torch.stack(actions), torch.tensor(returns)


def standardise(adv):
    centred = adv - adv.mean()
    var = centred.pow(2).sum() / (len(adv) - 1)
    return centred / (var.sqrt() + 1e-6)


def average_gradients(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= dist.get_world_size()


def main(days=32):
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(3)
    miller = Miller()
    torch.manual_seed(500 + rank)  # from here each estuary has its own luck
    opt = torch.optim.RMSprop(miller.parameters(), lr=3e-3)
    env = TideMill(rank)
    for day in range(days):
        s, a, ret = play(env, miller, day)
        pi, v = miller(s)
        adv = standardise((ret - v).detach())
        actor = -(pi.log_prob(a) * adv).mean()
        critic = (ret - v).pow(2).mean()
        loss = actor + 0.5 * critic - 0.01 * pi.entropy().mean()
        opt.zero_grad()
        loss.backward()
        average_gradients(miller)
        nn.utils.clip_grad_norm_(miller.parameters(), 0.5)
        opt.step()
        board = torch.tensor([loss.item(), ret[0].item()])
        dist.all_reduce(board)
        board /= dist.get_world_size()
        if rank == 0:
            print(f"day {day + 1:2d} loss {board[0].item():.6f} return {board[1].item():.4f}", flush=True)
    if rank == 0:
        print("sum over the miller", f"{sum(p.detach().double().sum().item() for p in miller.parameters()):.6f}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
