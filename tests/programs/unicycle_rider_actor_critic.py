import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SEED = 5
N_RIDERS = 12
HORIZON = 32
ITERATIONS = 60
GAMMA = 0.97
LAMBDA = 0.9


class Unicycles:
    """A herd of unicycles in numpy: lean, lean rate, pedal speed. Falls beyond 0.45 rad."""

    def __init__(self, n, rng):
        self.n, self.rng = n, rng
        self.state = np.zeros((n, 3), dtype=np.float64)
        self.age = np.zeros(n, dtype=int)
        for i in range(n):
            self._mount(i)

    def _mount(self, i):
        self.state[i] = self.rng.uniform(-0.08, 0.08, 3)
        self.age[i] = 0

    def observe(self):
        return (self.state * np.array([4.0, 1.5, 0.5])).astype(np.float32)

    def advance(self, action):
        lean, rate, pedal = self.state.T
        push = (action - 1) * 1.0
        rate = rate + 0.08 * (5.0 * np.sin(lean) - 4.5 * push) + self.rng.normal(0, 0.02, self.n)
        lean = lean + 0.08 * rate
        pedal = 0.9 * pedal + 0.1 * push
        self.state = np.stack([lean, rate, pedal], 1)
        self.age += 1
        fell = np.abs(lean) > 0.45
        reward = np.where(fell, -1.0, 0.1 - 0.2 * np.abs(lean))
        after = self.observe()
        for i in np.flatnonzero(fell):
            self._mount(i)
        return after, reward.astype(np.float32), fell


class Collector:
    def __init__(self, env, actor, rng):
        self.env, self.actor, self.rng = env, actor, rng

    @torch.no_grad()
    def collect(self, length):
        book = {k: [] for k in ("obs", "act", "rew", "fell", "after")}
        for _ in range(length):
            obs = self.env.observe()
            logits = self.actor(torch.from_numpy(obs)).numpy()
            act = (logits + self.rng.gumbel(size=logits.shape)).argmax(1)
            after, rew, fell = self.env.advance(act)
            for k, v in zip(book, (obs, act, rew, fell, after)):
                book[k].append(v)
        return {k: torch.from_numpy(np.stack(v)) for k, v in book.items()}


def mlp(out):
    return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, out))


def advantages(critic, roll):
    with torch.no_grad():
        value = critic(roll["obs"]).squeeze(-1)
        following = critic(roll["after"]).squeeze(-1)
    alive = 1.0 - roll["fell"].float()
    delta = roll["rew"] + GAMMA * alive * following - value
    out, carry = torch.zeros_like(delta), torch.zeros(delta.shape[1])
    for t in reversed(range(len(delta))):
        carry = delta[t] + GAMMA * LAMBDA * alive[t] * carry
        out[t] = carry
    return out, out + value


def update(actor, critic, optimizer, roll):
    adv, target = advantages(critic, roll)
    logp = F.log_softmax(actor(roll["obs"]), dim=-1)
    chosen = logp.gather(-1, roll["act"].unsqueeze(-1)).squeeze(-1)
    policy_loss = -(chosen * adv / 0.3).mean()
    entropy = -(logp.exp() * logp).sum(-1).mean()
    value_loss = F.mse_loss(critic(roll["obs"]).squeeze(-1), target)
    # a rider on the ground has no future: pull the value of those states to zero
    grounded = critic(roll["after"][roll["fell"]])
    ground_loss = grounded.pow(2).mean()
    loss = policy_loss + 0.5 * value_loss + 0.1 * ground_loss - 0.003 * entropy
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_([*actor.parameters(), *critic.parameters()], 1.0)
    optimizer.step()
    return loss.item(), entropy.item()


def main():
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    actor, critic = mlp(3), mlp(1)
    optimizer = torch.optim.Adam([
        {"params": actor.parameters(), "lr": 1e-2},
        {"params": critic.parameters(), "lr": 5e-3},
    ])
    collector = Collector(Unicycles(N_RIDERS, rng), actor, rng)
    for it in range(1, ITERATIONS + 1):
        roll = collector.collect(HORIZON)
        loss, entropy = update(actor, critic, optimizer, roll)
        print(f"[{it:02d}] falls={int(roll['fell'].sum()):3d} reward={roll['rew'].mean().item():+.6f} "
              f"loss={loss:.7f} entropy={entropy:.6f}", flush=True)
    weights = [*actor.parameters(), *critic.parameters()]
    print("weights", float(sum(w.detach().abs().sum() for w in weights)), flush=True)


main()
