"""MSc project, chapter 4: clone the teleoperated peg insertion with a mixture density head."""
import math
import torch
import torch.nn as nn
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader, Dataset


class TeleopDemos(Dataset):
    """State: pose of the gripper relative to the hole and the wrist force. Action: planar velocity.
    Operators go round an edge either to the left or to the right."""

    def __init__(self, n, seed=5):
        g = torch.Generator().manual_seed(seed)
        self.state = torch.randn(n, 5, generator=g)
        side = (torch.rand(n, generator=g) < 0.5).float() * 2 - 1
        vx = -0.5 * self.state[:, 0] + 0.4 * side
        vy = -0.5 * self.state[:, 1] - 0.2 * self.state[:, 4]
        self.action = torch.stack([vx, vy], 1) + 0.05 * torch.randn(n, 2, generator=g)

    def __len__(self):
        return len(self.state)

    def __getitem__(self, i):
        return {"state": self.state[i], "action": self.action[i]}


class ComponentDropout(nn.Module):
    """Switches single modes off while training, so that no mode is left without demonstrations."""

    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, logits):
        if not self.training:
            return logits
        off = torch.rand_like(logits) < self.p
        return logits.masked_fill(off, -math.inf)


class MixtureHead(nn.Module):
    def __init__(self, width, modes, dim):
        super().__init__()
        self.modes, self.dim = modes, dim
        self.weight = nn.Linear(width, modes)
        self.mean = nn.Linear(width, modes * dim)
        self.scale = nn.Linear(width, modes * dim)
        self.drop = ComponentDropout(0.12)

    def forward(self, h):
        log_w = torch.log_softmax(self.drop(self.weight(h)), dim=-1)
        mean = self.mean(h).view(-1, self.modes, self.dim)
        sigma = nn.functional.softplus(self.scale(h)).view(-1, self.modes, self.dim) + 0.02
        return log_w, mean, sigma


class ClonedPolicy(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 32), nn.SiLU(), nn.Linear(32, 32), nn.SiLU())
        self.head = MixtureHead(32, modes=3, dim=2)

    def forward(self, state):
        return self.head(self.trunk(state))


def mdn_loss(outputs, action):
    log_w, mean, sigma = outputs
    z = (action.unsqueeze(1) - mean) / sigma
    log_n = (-0.5 * z.square() - sigma.log() - 0.5 * math.log(2 * math.pi)).sum(-1)
    return -torch.logsumexp(log_w + log_n, dim=-1).mean()


def train(seed):
    set_seed(seed)
    accelerator = Accelerator(cpu=True)
    policy = ClonedPolicy()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=6e-3)
    loader = DataLoader(TeleopDemos(256), batch_size=16, shuffle=True)
    policy, optimizer, loader = accelerator.prepare(policy, optimizer, loader)
    step = 0
    for epoch in range(2):
        for batch in loader:
            step += 1
            loss = mdn_loss(policy(batch["state"]), batch["action"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(policy.parameters(), 2.0)
            optimizer.step()
            optimizer.zero_grad()
            accelerator.print(f"epoch {epoch} step {step} nll {loss.item():.4f}")
    accelerator.print("weight norm at the end:", math.sqrt(sum(p.detach().square().sum() for p in policy.parameters())))


if __name__ == "__main__":
    train(seed=0)
