"""PPO on a toy control task. Actor and critic are two networks with an optimizer each."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from torch.distributions import Normal


@dataclass
class Args:
    seed: int = 1
    updates: int = 4
    horizon: int = 32
    clip: float = 0.2
    gamma: float = 0.97


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
        self.logstd = nn.Parameter(torch.zeros(1))

    def dist(self, obs):
        return Normal(self.mean(obs), self.logstd.exp())


args = Args()
torch.set_num_threads(1)
torch.manual_seed(args.seed)
actor, critic = Actor(), nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1))
actor_opt = torch.optim.Adam(actor.parameters(), lr=3e-3, eps=1e-5)
critic_opt = torch.optim.Adam(critic.parameters(), lr=1e-2)
for update in range(args.updates):
    obs, acts, logps, rews, state = [], [], [], [], torch.randn(2)
    with torch.no_grad():
        for _ in range(args.horizon):
            d = actor.dist(state)
            a = d.sample()
            obs.append(state), acts.append(a), logps.append(d.log_prob(a).sum())
            state = torch.stack([state[0] + 0.1 * state[1], state[1] + 0.1 * a[0].clamp(-2, 2)])
            rews.append(-(state ** 2).sum())
    obs, acts, logps = torch.stack(obs), torch.stack(acts), torch.stack(logps)
    returns, run = torch.zeros(args.horizon), torch.zeros(())
    for t in reversed(range(args.horizon)):
        returns[t] = run = rews[t] + args.gamma * run
    for mb in [*torch.randperm(args.horizon).split(16), *torch.randperm(args.horizon).split(16)]:
        value = critic(obs[mb]).squeeze(-1)
        adv = (returns[mb] - value).detach()
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        ratio = (actor.dist(obs[mb]).log_prob(acts[mb]).sum(-1) - logps[mb]).exp()
        pg_loss = -torch.min(ratio * adv, ratio.clamp(1 - args.clip, 1 + args.clip) * adv).mean()
        v_loss = 0.5 * (returns[mb] - value).pow(2).mean()
        for net, opt, loss in ((actor, actor_opt, pg_loss), (critic, critic_opt, v_loss)):
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
        print(update, pg_loss.item(), v_loss.item())
print(sum(p.double().sum().item() for net in (actor, critic) for p in net.parameters()))
