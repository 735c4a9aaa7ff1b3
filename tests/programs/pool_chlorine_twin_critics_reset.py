"""Dosing of chlorine in a swimming pool: deterministic actor, twin critics, behaviour cloning term, head resets."""
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(42)


def mlp(i, hidden):
    return nn.Sequential(nn.Linear(i, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


class Doser(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.out = mlp(3, 32), nn.Linear(32, 1)

    def forward(self, s):
        return torch.tanh(self.out(self.body(s)))


class Critic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = mlp(4, 32), nn.Linear(32, 1)

    def forward(self, s, a):
        return self.head(self.body(torch.cat([s, a], -1)))

    def fresh_head(self):
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


class Logbook:
    """What the attendants did last season: (chlorine, temperature, swimmers) -> dose."""

    def __init__(self, n=2000):
        s = torch.randn(n, 3)
        a = torch.tanh(-0.8 * s[:, :1] + 0.3 * s[:, 2:] + 0.3 * torch.randn(n, 1))
        chlorine = 0.7 * s[:, :1] + 0.9 * a - 0.4 * s[:, 2:] + 0.05 * torch.randn(n, 1)
        s2 = torch.cat([chlorine, 0.9 * s[:, 1:2] + 0.1 * torch.randn(n, 1), torch.randn(n, 1)], 1)
        self.rows = s, a, 1.0 - chlorine.pow(2), s2

    def sample(self, n):
        i = torch.randint(0, len(self.rows[0]), (n,))
        return [c[i] for c in self.rows]


class Agent:
    gamma, tau, alpha, delay, reset_every = 0.95, 0.02, 2.5, 2, 14

    def __init__(self):
        self.actor, self.q1, self.q2 = Doser(), Critic(), Critic()
        self.actor_t, self.q1_t, self.q2_t = map(copy.deepcopy, (self.actor, self.q1, self.q2))
        self.actor_opt = torch.optim.Adam(self.actor.parameters(), lr=1e-3)
        self.q_opt = torch.optim.Adam([*self.q1.parameters(), *self.q2.parameters()], lr=2e-3)

    def update_actor(self, s, a):
        pi = self.actor(s)
        q = self.q1(s, pi)
        weight = self.alpha / q.abs().mean().detach()
        loss = F.mse_loss(pi, a) - weight * q.mean()
        self.actor_opt.zero_grad()
        loss.backward()
        self.actor_opt.step()
        return loss.item()

    def update_critics(self, s, a, r, s2):
        with torch.no_grad():
            a2 = self.actor_t(s2)
            a2 = (a2 + (0.1 * torch.randn_like(a2)).clamp(-0.3, 0.3)).clamp(-1, 1)
            y = r + self.gamma * torch.min(self.q1_t(s2, a2), self.q2_t(s2, a2))
        loss = F.mse_loss(self.q1(s, a), y) + F.mse_loss(self.q2(s, a), y)
        self.q_opt.zero_grad()
        loss.backward()
        self.q_opt.step()
        return loss.item()

    @torch.no_grad()
    def follow(self):
        for net, target in ((self.actor, self.actor_t), (self.q1, self.q1_t), (self.q2, self.q2_t)):
            for p, t in zip(net.parameters(), target.parameters()):
                t.lerp_(p, self.tau)

    def fit(self, book, steps):
        for k in range(1, steps + 1):
            if k % self.reset_every == 0:
                self.q1.fresh_head(), self.q2.fresh_head()
            s, a, r, s2 = book.sample(64)
            actor_loss = self.update_actor(s, a) if k % self.delay == 0 else None
            critic_loss = self.update_critics(s, a, r, s2)
            self.follow()
            text = f"{actor_loss:.4f}" if actor_loss is not None else "-"
            print(f"[{k}] critics {critic_loss:.4f} actor {text}")


agent = Agent()
agent.fit(Logbook(), 36)
nets = (agent.actor, agent.q1, agent.q2)
print("L1 of all networks", sum(p.detach().abs().sum().item() for n in nets for p in n.parameters()))
