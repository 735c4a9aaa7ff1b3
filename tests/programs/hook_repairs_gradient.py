# GRUCell rollout; path length of the predicted track with a hook that repairs the gradient of sqrt at 0
import torch
from torch import nn

torch.manual_seed(15)
torch.set_num_threads(1)


def repaired(t):
    if t.requires_grad:
        t.register_hook(lambda g: torch.nan_to_num(g, nan=0.0, posinf=0.0, neginf=0.0))
    return t


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, 12)
        self.move = nn.Linear(12, 2)

    def forward(self, obs, steps):
        h = obs.new_zeros(obs.shape[0], 12)
        pos, track = obs, []
        for _ in range(steps):
            h = self.cell(pos, h)
            delta = self.move(h)
            delta = delta * (delta.abs() > 0.05)  # dead zone: the robot stands still
            pos = pos + delta
            track.append(delta)
        return pos, torch.stack(track, 1)


tracker = Tracker()
opt = torch.optim.Adam(tracker.parameters(), lr=3e-3)
for it in range(20):
    start = torch.rand(10, 2)
    end, deltas = tracker(start, 6)
    length = repaired(deltas).pow(2).sum(-1)
    length = repaired(length).sqrt().sum(1)
    miss = (end - 1).pow(2).sum(1)
    loss = (miss + 0.02 * length).mean()
    opt.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(tracker.parameters(), 1.0)
    opt.step()
    print(it, f"loss {loss.item():.5f} length {length.mean().item():.5f} norm {norm.item():.4f}")
print("weights", sum(p.double().sum().item() for p in tracker.parameters()))
