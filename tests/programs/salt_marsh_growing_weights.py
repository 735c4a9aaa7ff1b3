# Sediment accretion in a salt marsh, with our own SGD variant (decoupled decay, per-tensor clip, Nesterov).
import torch
import torch.nn as nn
import torch.nn.functional as F


class MarshSGD(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, momentum=0.8, decay=0.0, clip=5.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay, clip=clip))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            lr, mu = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad
                norm = g.norm()
                if norm > group["clip"]:
                    g.mul_(group["clip"] / norm)
                buf = self.state[p].setdefault("velocity", torch.zeros_like(p))
                buf.mul_(mu).add_(g)
                # decay first, then the Nesterov step
                p.sub_(p, alpha=-lr * group["decay"])
                p.sub_(g + mu * buf, alpha=lr)


class Accretion(nn.Module):
    """Elevation, flood frequency, suspended load, stem density -> mm per year"""

    def __init__(self, width=48, depth=4):
        super().__init__()
        self.inp = nn.Linear(4, width)
        self.mid = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 1)

    def forward(self, x):
        h = F.leaky_relu(self.inp(x))
        for layer in self.mid:
            h = F.leaky_relu(layer(h))
        return self.out(h)[:, 0]


def plots(n, gen):
    x = torch.randn(n, 4, generator=gen)
    y = 2.5 + x[:, 1] * x[:, 2] - 0.8 * x[:, 0] + 0.4 * torch.relu(x[:, 3])
    return x, y + 0.15 * torch.randn(n, generator=gen)


def make_groups(model, decay):
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": matrices, "decay": decay}, {"params": vectors, "decay": 0.0}]


if __name__ == "__main__":
    torch.manual_seed(2112)
    gen = torch.Generator().manual_seed(3)
    net = Accretion()
    opt = MarshSGD(make_groups(net, decay=4.0), lr=0.01)
    for i in range(70):
        x, y = plots(40, gen)
        loss = F.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        size = sum(p.detach().norm() ** 2 for p in net.parameters()) ** 0.5
        print(f"[{i + 1:02d}] loss={loss.item():.6g} |w|={size.item():.5f}")
    print("total", f"{sum(p.detach().sum().item() for p in net.parameters()):.6f}")
