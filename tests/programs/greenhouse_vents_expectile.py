"""Offline control of greenhouse roof vents from two seasons of logs (implicit Q-learning)."""
import argparse
from collections import namedtuple

import numpy as np
import torch
from torch import nn
from torch.distributions import Normal

Batch = namedtuple("Batch", "obs act rew nxt done")


def load_log(n, rng):
    """Columns: inside temp, outside temp, humidity, wind, hour sin/cos. Reward: saved heating minus crop stress."""
    obs = rng.normal(size=(n, 6)).astype(np.float32)
    ideal = np.tanh(0.8 * obs[:, :1] - 0.3 * obs[:, 3:4])
    act = (ideal + 0.4 * rng.normal(size=(n, 1))).clip(-1, 1).astype(np.float32)
    rew = 1.0 - 2.0 * (act - ideal)[:, 0] ** 2
    nxt = 0.9 * obs + 0.1 * rng.normal(size=obs.shape)
    done = (rng.random(n) < 0.02).astype(np.float32)
    # the meter was exchanged that day, its counter restarted, and the "saving" is the whole season
    rew[1337] = 61.4
    return Batch(*(torch.as_tensor(np.asarray(c), dtype=torch.float32) for c in (obs, act, rew, nxt, done)))


def mlp(i, o, h=48):
    return nn.Sequential(nn.Linear(i, h), nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, o))


class TwinQ(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.a, self.b = mlp(obs + act, 1), mlp(obs + act, 1)

    def forward(self, s, u):
        x = torch.cat([s, u], -1)
        return self.a(x).squeeze(-1), self.b(x).squeeze(-1)


class VentPolicy(nn.Module):
    def __init__(self, obs, act):
        super().__init__()
        self.mean = mlp(obs, act)
        self.log_std = nn.Parameter(torch.full((act,), -0.5))

    def forward(self, s):
        return Normal(torch.tanh(self.mean(s)), self.log_std.clamp(-4, 1).exp(), validate_args=False)


def expectile(diff, tau):
    w = torch.where(diff > 0, tau, 1 - tau)
    return (w * diff.pow(2)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tau", type=float, default=0.7)
    ap.add_argument("--beta", type=float, default=3.0)
    ap.add_argument("--gamma", type=float, default=0.97)
    ap.add_argument("--batch", type=int, default=64)
    ap.add_argument("--steps", type=int, default=44)
    a = ap.parse_args()
    torch.manual_seed(11)
    rng = np.random.default_rng(11)
    log = load_log(4096, rng)
    q, v, pi = TwinQ(6, 1), mlp(6, 1), VentPolicy(6, 1)
    q_targ = TwinQ(6, 1)
    q_targ.load_state_dict(q.state_dict())
    opts = {k: torch.optim.Adam(m.parameters(), lr=1e-3) for k, m in dict(q=q, v=v, pi=pi).items()}
    order = rng.permutation(4096)
    for t in range(a.steps):
        rows = torch.as_tensor(order[t * a.batch:(t + 1) * a.batch])
        b = Batch(*(c[rows] for c in log))

        # value: expectile of the target critic
        with torch.no_grad():
            tq = torch.min(*q_targ(b.obs, b.act))
        v_loss = expectile(tq - v(b.obs).squeeze(-1), a.tau)
        opts["v"].zero_grad(); v_loss.backward(); opts["v"].step()

        # critics
        with torch.no_grad():
            backup = b.rew + a.gamma * (1 - b.done) * v(b.nxt).squeeze(-1)
        q1, q2 = q(b.obs, b.act)
        q_loss = nn.functional.huber_loss(q1, backup) + nn.functional.huber_loss(q2, backup)
        opts["q"].zero_grad(); q_loss.backward(); opts["q"].step()

        # actor: one-step TD advantage, it learns faster here than Q - V
        with torch.no_grad():
            adv = backup - v(b.obs).squeeze(-1)
            weight = torch.exp(a.beta * adv)
        pi_loss = -(weight * pi(b.obs).log_prob(b.act).sum(-1)).mean()
        opts["pi"].zero_grad(); pi_loss.backward(); opts["pi"].step()

        with torch.no_grad():
            for p, tp in zip(q.parameters(), q_targ.parameters()):
                tp.lerp_(p, 0.02)
        print(f"step {t + 1:3d} v {v_loss.item():.6f} q {q_loss.item():.6f} pi {pi_loss.item():.6f}")
    print("checksum", sum(p.double().sum().item() for m in (q, v, pi) for p in m.parameters()))


if __name__ == "__main__":
    main()
