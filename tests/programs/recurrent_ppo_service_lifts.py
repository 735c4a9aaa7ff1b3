import torch
import torch.nn as nn
from torch.distributions import Categorical

FLOORS, HORIZON, EPOCHS = 5, 12, 2


class LiftBank:
    """Independent service lifts of a hotel; a trolley waits on some floor of each shaft."""

    def __init__(self, shafts, seed):
        self.g = torch.Generator().manual_seed(seed)
        self.floor = torch.zeros(shafts, dtype=torch.long)
        self.call = torch.randint(0, FLOORS, (shafts,), generator=self.g)

    def close_shaft(self, i):
        keep = [k for k in range(len(self.floor)) if k != i]
        self.floor, self.call = self.floor[keep], self.call[keep]

    def look(self):
        eye = torch.eye(FLOORS)
        # the call lamp flickers: it is seen only now and then, hence the memory
        lamp = (torch.rand(len(self.call), 1, generator=self.g) < 0.5).float()
        return torch.cat([eye[self.floor], eye[self.call] * lamp], -1)

    def move(self, action):
        self.floor = (self.floor + action - 1).clamp(0, FLOORS - 1)
        there = self.floor == self.call
        fresh = torch.randint(0, FLOORS, self.call.shape, generator=self.g)
        self.call = torch.where(there, fresh, self.call)
        return there.float() - 0.05


class Operator(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.embed = nn.Linear(2 * FLOORS, width)
        self.memory = nn.GRU(width, width)
        self.actor = nn.Linear(width, 3)
        self.critic = nn.Linear(width, 1)

    def forward(self, obs, h):
        z, h = self.memory(torch.tanh(self.embed(obs)), h)
        return Categorical(logits=self.actor(z)), self.critic(z).squeeze(-1), h


@torch.no_grad()
def rollout(bank, net, h):
    first, rows = h, []
    for _ in range(HORIZON):
        obs = bank.look()
        pi, value, h = net(obs[None], h)
        act = pi.sample()
        rows.append((obs, act[0], pi.log_prob(act)[0], value[0], bank.move(act[0])))
    obs, act, logp, value, reward = map(torch.stack, zip(*rows))
    adv, last, after = torch.zeros_like(reward), 0.0, value[-1]
    for k in reversed(range(HORIZON)):
        delta = reward[k] + 0.95 * after - value[k]
        last = delta + 0.95 * 0.9 * last
        adv[k], after = last, value[k]
    return first, h, obs, act, logp, adv, adv + value, reward.mean()


def main(updates=16):
    torch.manual_seed(77)
    bank, net = LiftBank(4, seed=5), Operator()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    h, step = torch.zeros(1, 4, net.width), 0
    for update in range(updates):
        if update == 9:
            bank.close_shaft(2)                 # yearly inspection
            print("shaft 2 closed for inspection")
        first, h, obs, act, logp_old, adv, target, reward = rollout(bank, net, h)
        adv = (adv - adv.mean()) / (adv.std() + 1e-8)
        for _ in range(EPOCHS):
            step += 1
            pi, value, _ = net(obs, first)
            ratio = (pi.log_prob(act) - logp_old).exp()
            gain = torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            loss = -gain + 0.5 * (value - target).pow(2).mean() - 0.01 * pi.entropy().mean()
            opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            opt.step()
            print(f"step {step:2d} loss {loss.item():+.4f} reward {reward.item():+.3f}")
    print("sum of |w|", sum(p.abs().sum().item() for p in net.parameters()))


main()
