"""AlphaZero in miniature for connect four: an averaged network guides the search, the search teaches the network."""
import copy

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(2, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
                                  nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(), nn.Flatten())
        self.move = nn.Linear(12 * 42, 7)
        self.outcome = nn.Linear(12 * 42, 1)

    def forward(self, planes):
        h = self.conv(planes)
        return self.move(h), self.outcome(h).squeeze(-1).tanh()


def random_boards(n, gen):
    """Legal positions by playing a number of random discs."""
    boards = torch.zeros(n, 2, 6, 7)
    height = torch.zeros(n, 7, dtype=torch.long)
    rows = torch.arange(n)
    for ply in range(int(torch.randint(6, 15, (1,), generator=gen))):
        open_cols = (height < 5).float()
        col = torch.multinomial(open_cols, 1, generator=gen).squeeze(1)
        boards[rows, ply % 2, height[rows, col], col] = 1
        height[rows, col] += 1
    return boards, height


def search(guide, boards, height, simulations, temperature, gen):
    """Visit counts of the root, sharpened by the temperature, and the value of the root."""
    with torch.no_grad():
        prior, value = guide(boards)
        centre = 0.35 * (3 - (torch.arange(7.0) - 3).abs())
        below = boards[:, 0].sum(1) * 0.4
        tilt = prior + centre + below
        tilt = tilt.masked_fill(height > 5, -1e4)
        clock = torch.empty(len(boards), simulations, 7).exponential_(generator=gen)
        draws = (tilt.softmax(-1).unsqueeze(1) / clock).argmax(-1)
        visits = F.one_hot(draws, 7).sum(1).float()
        sharp = visits ** (1.0 / temperature)
        pi = sharp / sharp.sum(-1, keepdim=True)
        z = torch.tanh(0.8 * value + 0.3 * (boards[:, 0, :, 2:5].sum((1, 2)) - boards[:, 1, :, 2:5].sum((1, 2))))
    return pi, z


@torch.no_grad()
def follow(average, net, keep):
    for a, b in zip(average.state_dict().values(), net.state_dict().values()):
        if a.is_floating_point():
            a.mul_(keep).add_(b, alpha=1 - keep)


def self_play(generations=34, positions=24, simulations=96):
    torch.manual_seed(7)
    gen = torch.Generator().manual_seed(70)
    net = Net()
    guide = copy.deepcopy(net).eval()
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4)
    temperature = 1.0
    for g in range(1, generations + 1):
        boards, height = random_boards(positions, gen)
        pi, z = search(guide, boards, height, simulations, temperature, gen)
        logits, v = net(boards)
        policy = -(pi * F.log_softmax(logits, -1)).sum(-1).mean()
        value = F.mse_loss(v, z)
        opt.zero_grad()
        (policy + value).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        follow(guide, net, 0.9)
        print(f"generation {g:2d} | temperature {temperature:.3f} | policy {policy.item():.4f} | value {value.item():.4f}")
        temperature *= 0.84
    return net


if __name__ == "__main__":
    trained = self_play()
    print("checksum of weights %.6f" % sum(p.double().abs().sum().item() for p in trained.parameters()))
