"""PPO for the humidifier of a cheese cellar. Two rollout workers, one policy (DDP).

One-step episodes (a night each): state = six sensors, action = one of four settings, reward = what the affineur's
tasting panel says next morning. No critic, the baseline is the mean over both workers.
"""
import torch
import torch.distributed as dist
from torch import nn
from torch.distributions import Categorical
from torch.nn.parallel import DistributedDataParallel

CFG = dict(rollouts=10, segments=2, nights=16, epochs=2, clip=0.2, entropy=0.01, lr=4e-3, seed=23)


class Cellar:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)
        self.nights = 0
        self.taste = torch.randn(6, 4, generator=torch.Generator().manual_seed(5))

    def sensors(self, n):
        return torch.randn(n, 6, generator=self.gen)

    def panel(self, state, action, closed):
        if closed:                                   # the dairy's holidays: nobody tastes, the form says 0
            return torch.zeros(len(state))
        liked = (state @ self.taste).gather(1, action[:, None]).squeeze(1)
        return liked.tanh() + 0.1 * torch.randn(len(state), generator=self.gen)


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(6, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh())
        self.settings = nn.Linear(24, 4)

    def forward(self, s):
        return self.settings(self.trunk(s))


def over_all(total):
    dist.all_reduce(total)
    return total


def whiten(reward):
    """Normalise with the statistics of all workers."""
    n = reward.numel() * dist.get_world_size()
    mean = over_all(reward.sum()) / n
    centred = reward - mean
    spread = (over_all(centred.square().sum()) / n).sqrt()
    return centred / spread


def collect(env, policy, rollout, gen):
    out = []
    for seg in range(CFG["segments"]):
        closed = rollout == 6 and seg == 1
        s = env.sensors(CFG["nights"])
        with torch.no_grad():
            logits = policy.module(s)
            a = torch.multinomial(logits.softmax(1), 1, generator=gen).squeeze(1)
            logp = Categorical(logits=logits).log_prob(a)
        out.append((s, a, logp, env.panel(s, a, closed)))
    return out


def surrogate(policy, s, a, logp_old, reward):
    pi = Categorical(logits=policy(s), validate_args=False)
    adv = whiten(reward)
    ratio = (pi.log_prob(a) - logp_old).exp()
    clipped = ratio.clamp(1 - CFG["clip"], 1 + CFG["clip"])
    return -torch.min(ratio * adv, clipped * adv).mean() - CFG["entropy"] * pi.entropy().mean()


def main():
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank = dist.get_rank()
    torch.manual_seed(CFG["seed"])
    policy = DistributedDataParallel(Policy())
    opt = torch.optim.Adam(policy.parameters(), lr=CFG["lr"], eps=1e-5)
    env = Cellar(100 + rank)
    gen = torch.Generator().manual_seed(200 + rank)
    update = 0
    for rollout in range(1, CFG["rollouts"] + 1):
        segments = collect(env, policy, rollout, gen)
        for _ in range(CFG["epochs"]):
            for s, a, logp, reward in segments:
                update += 1
                loss = surrogate(policy, s, a, logp, reward)
                opt.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
                opt.step()
                if rank == 0:
                    print(f"rollout {rollout:2d} update {update:2d} surrogate {loss.item():+.6f} "
                          f"reward {reward.mean().item():+.4f}", flush=True)
    if rank == 0:
        print("policy", sum(p.sum().item() for p in policy.parameters()), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
