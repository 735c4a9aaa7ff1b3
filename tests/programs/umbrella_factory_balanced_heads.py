"""Quality control in an umbrella factory: one trunk, three heads, weights of the tasks by GradNorm.

  wind    wind speed at which the canopy inverts (regression)
  seam    leaks or not (a margin is enough: hinge)
  ribs    which of five rib profiles (classification)
"""
import torch
from torch import nn
import torch.nn.functional as F


def measure(gen, n, centres):
    profile = torch.randint(5, (n,), generator=gen)
    x = centres[profile] + 0.5 * torch.randn(n, 12, generator=gen)
    wind = 0.3 * x[:, :4].sum(1) + torch.sin(x[:, 4]) + 0.1 * torch.randn(n, generator=gen)
    leaks = torch.where(torch.rand(n, generator=gen) < 0.4, 1.0, -1.0)
    x[:, 11] = 4.0 * leaks + 0.1 * torch.randn(n, generator=gen)     # the damp-meter sees a leak plainly
    return x, {"wind": wind, "seam": leaks, "ribs": profile}


class Inspector(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(12, 48), nn.LeakyReLU(0.1))
        self.shared = nn.Linear(48, 32)
        self.heads = nn.ModuleDict({"wind": nn.Linear(32, 1), "seam": nn.Linear(32, 1), "ribs": nn.Linear(32, 5)})

    def forward(self, x):
        h = F.leaky_relu(self.shared(self.trunk(x)), 0.1)
        return {name: head(h) for name, head in self.heads.items()}

    def losses(self, x, y):
        out = self(x)
        margin = y["seam"] * out["seam"][:, 0]
        return torch.stack([
            F.mse_loss(out["wind"][:, 0], y["wind"]),
            ((1 - margin) * (margin < 1)).mean(),
            F.cross_entropy(out["ribs"], y["ribs"]),
        ])


class GradNorm:
    """Chen et al. 2018: the weighted gradients of all tasks at the last shared layer are kept alike in length."""

    def __init__(self, tasks, alpha=0.5, lr=0.01):
        self.weights = torch.ones(tasks, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.weights], lr=lr)
        self.alpha, self.first = alpha, None

    def balance(self, losses, layer):
        if self.first is None:
            self.first = losses.detach().clone()
        lengths = []
        for w, loss in zip(self.weights, losses):
            g, = torch.autograd.grad(w * loss, layer.weight, create_graph=True)
            lengths.append(g.pow(2).sum().sqrt())
        lengths = torch.stack(lengths)
        pace = losses.detach() / self.first
        pace = pace / pace.mean()
        goal = lengths.detach().mean() * pace ** self.alpha
        return (lengths - goal).abs().sum()

    def step(self, imbalance):
        self.weights.grad, = torch.autograd.grad(imbalance, self.weights)
        self.optimizer.step()
        with torch.no_grad():
            self.weights.clamp_(min=0.05)
            self.weights.mul_(len(self.weights) / self.weights.sum())


def main():
    torch.manual_seed(19)
    gen = torch.Generator().manual_seed(44)
    centres = torch.randn(5, 12, generator=gen)
    net = Inspector()
    opt = torch.optim.Adam(net.parameters(), lr=4e-3)
    norm = GradNorm(3)
    for step in range(1, 61):
        x, y = measure(gen, 64, centres)
        losses = net.losses(x, y)
        imbalance = norm.balance(losses, net.shared)
        total = (norm.weights.detach() * losses).sum()
        opt.zero_grad()
        total.backward(retain_graph=True)
        norm.step(imbalance)
        opt.step()
        each = " ".join(f"{v:.5f}" for v in losses.tolist())
        print(f"[{step:02d}] total {total.item():.6f} | {each}", flush=True)
    weights = [*net.parameters(), norm.weights]
    print(sum(p.detach().abs().sum().item() for p in weights), flush=True)


if __name__ == "__main__":
    main()
