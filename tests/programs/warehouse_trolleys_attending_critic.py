"""Cooperative pickers in a warehouse: decentralised actors, one central critic that attends to other trolleys."""
import torch
from torch import nn
from torch.distributions import Categorical

TROLLEYS, GRID, HORIZON, ENVS = 4, 6, 10, 8
MOVES = torch.tensor([[0, 1], [0, -1], [1, 0], [-1, 0], [0, 0]])
CHARGING_FROM = 12       # from this shift on trolley 3 is parked in the charging bay, off the radio


class Floor:
    def __init__(self, seed):
        self.gen = torch.Generator().manual_seed(seed)

    def reset(self, shift):
        self.at = torch.randint(0, GRID, (ENVS, TROLLEYS, 2), generator=self.gen)
        self.goal = torch.randint(0, GRID, (ENVS, TROLLEYS, 2), generator=self.gen)
        # who hears whom: every trolley hears all others on the same access point
        self.radio = torch.zeros(ENVS, TROLLEYS, dtype=torch.long)
        if shift >= CHARGING_FROM:
            self.radio[:, 3] = 1
        return self.observe()

    def observe(self):
        return torch.cat([self.at, self.goal, self.goal - self.at], -1).float() / GRID

    def hears(self):
        same = self.radio[:, :, None] == self.radio[:, None]
        return same & ~torch.eye(TROLLEYS, dtype=torch.bool)

    def step(self, action):
        self.at = (self.at + MOVES[action]).clamp(0, GRID - 1)
        reached = (self.at == self.goal).all(-1)
        reward = reached.float() - 0.05
        fresh = torch.randint(0, GRID, (ENVS, TROLLEYS, 2), generator=self.gen)
        self.goal = torch.where(reached[..., None], fresh, self.goal)
        return self.observe(), reward


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, len(MOVES)))

    def forward(self, obs):
        return Categorical(logits=self.net(obs), validate_args=False)


class AttendingCritic(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.embed = nn.Linear(6, dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(2 * dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs, hears):
        e = torch.tanh(self.embed(obs))
        score = self.q(e) @ self.k(e).transpose(-1, -2) / e.shape[-1] ** 0.5
        score = score.masked_fill(~hears, float("-inf"))
        heard = torch.softmax(score, -1) @ self.v(e)
        return self.head(torch.cat([e, heard], -1)).squeeze(-1)


def rollout(floor, actor, shift, gen):
    obs = floor.reset(shift)
    rows = []
    for _ in range(HORIZON):
        with torch.no_grad():
            noise = torch.rand(ENVS, TROLLEYS, len(MOVES), generator=gen).clamp_min(1e-9)
            action = (actor(obs).logits - (-noise.log()).log()).argmax(-1)       # Gumbel trick
        after, reward = floor.step(action)
        rows.append((obs, action, reward, floor.hears()))
        obs = after
    return [torch.stack(c) for c in zip(*rows)]


def returns(reward, gamma=0.95):
    out, run = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(HORIZON)):
        run = reward[t] + gamma * run
        out[t] = run
    return out


def main():
    torch.manual_seed(23)
    floor, gen = Floor(4), torch.Generator().manual_seed(5)
    actor, critic = Actor(), AttendingCritic()
    opt = torch.optim.Adam([{"params": actor.parameters(), "lr": 3e-3}, {"params": critic.parameters(), "lr": 1e-2}])
    for shift in range(1, 46):
        obs, action, reward, hears = rollout(floor, actor, shift, gen)
        goal = returns(reward)
        value = critic(obs, hears)
        advantage = (goal - value).detach()
        policy = actor(obs)
        actor_loss = -(policy.log_prob(action) * advantage).mean() - 0.01 * policy.entropy().mean()
        critic_loss = (goal - value).square().mean()
        loss = actor_loss + 0.5 * critic_loss
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"shift {shift} loss {loss.item():.8f} picked {int((reward > 0).sum())}", flush=True)
    print("%.6f" % sum(p.detach().abs().sum().item() for p in [*actor.parameters(), *critic.parameters()]), flush=True)


if __name__ == "__main__":
    main()
