"""Three drones share an orchard: recurrent policies with a message channel (CommNet-like), advantage actor-critic."""
import torch
from torch import nn
from torch.distributions import Categorical

N_AGENTS, GRID, HORIZON, MOVES = 3, 5, 16, torch.tensor([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1]])


class Orchard:
    def __init__(self, seed):
        self.g = torch.Generator().manual_seed(seed)

    def reset(self):
        self.pos = torch.randint(GRID, (N_AGENTS, 2), generator=self.g)
        n = int(torch.randint(1, 6, (1,), generator=self.g))
        self.ripe = torch.zeros(GRID, GRID)
        for r, c in torch.randint(GRID, (n, 2), generator=self.g).tolist():
            self.ripe[r, c] = 1
        self.left = 11 if n < 5 else 18          # the battery: more to pick, a bigger pack
        return self.observe()

    def observe(self):
        onehot = nn.functional.one_hot(self.pos[:, 0] * GRID + self.pos[:, 1], GRID * GRID).float()
        return torch.cat([onehot, self.ripe.flatten().expand(N_AGENTS, -1)], 1)

    def step(self, action):
        self.pos = (self.pos + MOVES[action]).clamp(0, GRID - 1)
        reward = -0.02
        for r, c in self.pos.tolist():
            reward += float(self.ripe[r, c])
            self.ripe[r, c] = 0
        self.left -= 1
        return self.observe(), reward, self.left == 0 or not self.ripe.any()


class CommNet(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.width = width
        self.see = nn.Linear(2 * GRID * GRID, width)
        self.cell = nn.GRUCell(2 * width, width)
        self.pi, self.v = nn.Linear(width, len(MOVES)), nn.Linear(width, 1)

    def initial(self):
        return torch.zeros(N_AGENTS, self.width)

    def forward(self, obs, h):
        heard = (h.sum(0, keepdim=True) - h) / (N_AGENTS - 1)
        h = self.cell(torch.cat([self.see(obs).tanh(), heard], 1), h)
        return Categorical(logits=self.pi(h)), self.v(h).mean(), h


def returns(rewards, last, gamma=0.95):
    out, r = [], last
    for x in reversed(rewards):
        r = x + gamma * r
        out.insert(0, r)
    return torch.tensor(out)


def train(iterations=40, seed=14):
    torch.manual_seed(seed)
    env, net = Orchard(seed), CommNet()
    opt = torch.optim.RMSprop(net.parameters(), lr=2e-3)
    obs, h = env.reset(), net.initial()
    for it in range(1, iterations + 1):
        logp, values, rewards, entropy = [], [], [], 0.0
        for _ in range(HORIZON):
            dist, value, h = net(obs, h)
            action = dist.sample()
            obs, reward, done = env.step(action)
            logp.append(dist.log_prob(action).sum())
            values.append(value)
            rewards.append(reward)
            entropy = entropy + dist.entropy().mean()
            if done:
                break
        with torch.no_grad():
            bootstrap = 0.0 if done else net(obs, h)[1].item()
        values, target = torch.stack(values), returns(rewards, bootstrap)
        adv = target - values
        loss = -(torch.stack(logp) * adv.detach()).mean() + 0.5 * adv.square().mean() - 0.01 * entropy / len(logp)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        print(f"update {it} length {len(rewards)} return {sum(rewards):.2f} loss {loss.item():.4f}", flush=True)
        if done:
            obs, h = env.reset(), net.initial()


train()
