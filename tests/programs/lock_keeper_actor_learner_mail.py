"""A lock keeper learns when to open the sluice.  Rank 1 acts, rank 0 learns; they mail each other tensors.

Each mail of the actor is one block of episodes of unequal length: the tail of a short episode is inf on purpose,
so that anybody who forgets the mask notices.  The learner answers with its flat weights.  The actor never steps.
"""
import math

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

ROUNDS, EPISODES, HORIZON = 30, 6, 12
LEARNER, ACTOR = 0, 1


def make_policy():
    torch.manual_seed(21)
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))


class Lock:
    """Level of the chamber and the queue of barges."""

    def __init__(self, gen):
        self.gen = gen
        self.level, self.queue = 0.0, 1.0

    def observe(self):
        return torch.tensor([self.level, self.queue])

    def act(self, opened):
        self.level += -0.4 if opened else 0.25
        self.queue += float(torch.rand((), generator=self.gen)) * 0.5 - (0.6 if opened else 0.0)
        reward = -1e4 * abs(self.level) - 5e3 * max(self.queue, 0.0)      # water is money
        return reward, abs(self.level) > 1.5


def actor():
    policy, gen = make_policy(), torch.Generator().manual_seed(5)
    flat = parameters_to_vector(policy.parameters()).detach().clone()
    for _ in range(ROUNDS):
        dist.recv(flat, src=LEARNER)
        vector_to_parameters(flat, policy.parameters())
        block = torch.full((EPISODES, HORIZON, 4), math.inf)
        for e in range(EPISODES):
            lock = Lock(gen)
            for t in range(HORIZON):
                obs = lock.observe()
                with torch.no_grad():
                    p_open = policy(obs).softmax(-1)[1]
                opened = bool(torch.rand((), generator=gen) < p_open)
                reward, done = lock.act(opened)
                block[e, t] = torch.tensor([obs[0], obs[1], float(opened), reward])
                if done:
                    break
        dist.send(block, dst=LEARNER)


def returns_to_go(reward, alive, gamma=0.97):
    out, run = torch.zeros_like(reward), torch.zeros(len(reward))
    for t in reversed(range(HORIZON)):
        run = torch.where(alive[:, t], reward[:, t] + gamma * run, torch.zeros(()))
        out[:, t] = run
    return out


def learner():
    policy = make_policy()
    opt = torch.optim.RMSprop(policy.parameters(), lr=3e-3)
    block = torch.empty(EPISODES, HORIZON, 4)
    for r in range(1, ROUNDS + 1):
        dist.send(parameters_to_vector(policy.parameters()).detach().contiguous(), dst=ACTOR)
        dist.recv(block, src=ACTOR)
        alive = torch.isfinite(block[..., 3])
        obs, act, rew = block[..., :2][alive], block[..., 2][alive].long(), block[..., 3]
        ret = returns_to_go(rew, alive)[alive]
        adv = ret - ret.mean()                       # in money, not normalised: losses of +-1e4 are usual here
        logp = policy(obs).log_softmax(-1).gather(1, act[:, None])[:, 0]
        loss = -(adv * logp).mean()
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        opt.step()
        print(f"round {r:2d} loss {loss.item():.4f} steps {int(alive.sum())} return {ret.mean().item():.1f}", flush=True)
    print(f"weights {parameters_to_vector(policy.parameters()).detach().double().sum().item():.6f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    (learner if dist.get_rank() == LEARNER else actor)()
    dist.barrier()
    dist.destroy_process_group()
