# Off-policy evaluation on the seven-state star (Sutton & Barto, ch. 11).
# The behaviour policy visits all states equally often, the target policy
# always takes the solid action, which leads to the hub.
import torch
from torch import nn

GAMMA = 0.99
ALPHA = 2.0
HUB = 6
STEPS = 130


def star_features():
    phi = torch.zeros(7, 8)
    for s in range(6):
        phi[s, s] = 2.0
        phi[s, 7] = 1.0
    phi[HUB, 6] = 1.0
    phi[HUB, 7] = 2.0
    return phi


class LinearValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(8, 1, bias=False)
        with torch.no_grad():
            self.w.weight.copy_(torch.tensor([[1., 1., 1., 1., 1., 1., 10., 1.]]))

    def forward(self, phi):
        return self.w(phi).squeeze(-1)


def bellman_targets(value, phi):
    with torch.no_grad():
        hub_value = value(phi[HUB:HUB + 1])
    return (GAMMA * hub_value).expand(7)      # all rewards are zero


def main():
    phi = star_features()
    value = LinearValue()
    history = []
    for sweep in range(1, STEPS + 1):
        target = bellman_targets(value, phi)
        td = target - value(phi)
        loss = 0.5 * td.pow(2).mean()
        value.zero_grad()
        loss.backward()
        with torch.no_grad():
            for p in value.parameters():
                p -= ALPHA * p.grad
        history.append(loss.item())
        print(f"sweep {sweep:3d}  msbe {loss.item():.6g}")
    best = min(range(len(history)), key=history.__getitem__)
    print("lowest error in sweep", best + 1)
    print("norm", value.w.weight.detach().pow(2).sum().item())


if __name__ == "__main__":
    main()
