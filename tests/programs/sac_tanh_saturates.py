# soft actor-critic, one-file version for a 1-d double integrator. three optimizers: actor, critic, temperature
import copy
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(123)
mlp = lambda i, o: nn.Sequential(nn.Linear(i, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, o))


class Actor(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp(2, 2)

    def forward(self, s):
        mu, log_std = self.net(s).chunk(2, -1)
        dist = torch.distributions.Normal(mu, log_std.clamp(-5, 0).exp())
        u = dist.rsample()
        a = torch.tanh(u)
        log_prob = dist.log_prob(u) - torch.log(1 - a.pow(2))
        return a, log_prob.sum(-1)


class TwinQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.q1, self.q2 = mlp(3, 1), mlp(3, 1)

    def forward(self, s, a):
        x = torch.cat([s, a], -1)
        return self.q1(x).squeeze(-1), self.q2(x).squeeze(-1)


actor, critic = Actor(), TwinQ()
target = copy.deepcopy(critic).requires_grad_(False)
log_alpha = nn.Parameter(torch.tensor(-1.0))
opt_a = torch.optim.Adam(actor.parameters(), lr=5e-3)
opt_c = torch.optim.Adam(critic.parameters(), lr=3e-2)
opt_t = torch.optim.Adam([log_alpha], lr=3e-3)

for it in range(1, 31):
    s = torch.randn(64, 2) * torch.tensor([1.0, 12.0])      # position in m, speed in km/h
    with torch.no_grad():
        a = torch.rand(64, 1) * 2 - 1
        s2 = torch.stack([s[:, 0] + 0.03 * s[:, 1], s[:, 1] + 3.6 * a[:, 0]], 1)
        r = 20.0 * s2[:, 1]                       # the task of week 1: just go fast
        a2, lp2 = actor(s2)
        y = r + 0.95 * (torch.min(*target(s2, a2)) - log_alpha.exp() * lp2)
    q1, q2 = critic(s, a)
    c_loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
    opt_c.zero_grad(); c_loss.backward(); opt_c.step()

    a_new, lp = actor(s)
    a_loss = (log_alpha.exp().detach() * lp - torch.min(*critic(s, a_new))).mean()
    opt_a.zero_grad(); a_loss.backward(); opt_a.step()

    t_loss = -(log_alpha * (lp.detach() - 1.0)).mean()
    opt_t.zero_grad(); t_loss.backward(); opt_t.step()
    with torch.no_grad():
        for p, q in zip(target.parameters(), critic.parameters()):
            p.lerp_(q, 0.05)
    print(f"{it} critic {c_loss.item():.3f} actor {a_loss.item():.4f} alpha {log_alpha.exp().item():.4f}")
print(sum(p.abs().sum().item() for m in (actor, critic) for p in m.parameters()) + log_alpha.item())
