# Salinity along an estuary: an implicit layer z = f(z, x), solved with Anderson mixing,
# differentiated through a second fixed point in a backward hook.
import torch
from torch import autograd, nn

torch.manual_seed(21)
torch.set_num_threads(1)
GAUGES, WIDTH, N = 6, 20, 24


class Cell(nn.Module):
    def __init__(self, n_in, width):
        super().__init__()
        self.a = nn.Linear(width, width, bias=False)
        self.b = nn.Linear(n_in, width)
        self.scale = nn.LayerNorm(width)
        with torch.no_grad():
            self.a.weight.mul_(0.4)

    def forward(self, z, x):
        return torch.tanh(self.a(z) + self.scale(self.b(x)))


def mixing(f, z0, m=4, lam=1e-4, rounds=25, tol=1e-4):
    bsz, d = z0.shape
    xs = torch.zeros(bsz, m, d)
    fs = torch.zeros(bsz, m, d)
    xs[:, 0], fs[:, 0] = z0, f(z0)
    xs[:, 1], fs[:, 1] = fs[:, 0], f(fs[:, 0])
    h = torch.zeros(bsz, m + 1, m + 1)
    h[:, 0, 1:] = h[:, 1:, 0] = 1
    y = torch.zeros(bsz, m + 1, 1)
    y[:, 0] = 1
    best, kept, k = float("inf"), z0, 1
    for k in range(2, rounds):
        n = min(k, m)
        g = fs[:, :n] - xs[:, :n]
        h[:, 1:n + 1, 1:n + 1] = torch.bmm(g, g.transpose(1, 2)) + lam * torch.eye(n)
        alpha = torch.linalg.solve(h[:, :n + 1, :n + 1], y[:, :n + 1])[:, 1:n + 1, 0]
        xs[:, k % m] = (alpha[:, None] @ fs[:, :n])[:, 0]
        fs[:, k % m] = f(xs[:, k % m])
        res = (fs[:, k % m] - xs[:, k % m]).norm() / (1e-5 + fs[:, k % m].norm())
        if res < best:
            best, kept = res.item(), xs[:, k % m].clone()
        if res < tol:
            break
    return kept, k


class Implicit(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell, self.used = cell, [0, 0]

    def forward(self, x):
        with torch.no_grad():
            z, self.used[0] = mixing(lambda v: self.cell(v, x), torch.zeros(len(x), WIDTH))
        z = self.cell(z, x)
        if not self.training:
            return z
        z0 = z.clone().detach().requires_grad_()
        f0 = self.cell(z0, x)

        def pull(grad):
            g, self.used[1] = mixing(lambda v: autograd.grad(f0, z0, v, retain_graph=True)[0] + grad, grad)
            return g

        z.register_hook(pull)
        return z


def readings(gen):
    tide = torch.rand(N, 1, generator=gen) * 6.28
    x = torch.sin(tide + torch.arange(GAUGES) * 0.5) + 0.05 * torch.randn(N, GAUGES, generator=gen)
    target = 15 + 8 * torch.tanh(x.sum(1, keepdim=True) / 3)
    out = torch.rand(N, GAUGES, generator=gen) < 0.1
    return torch.where(out, torch.tensor(float("nan")), x), target / 10


gen = torch.Generator().manual_seed(4)
layer = Implicit(Cell(2 * GAUGES, WIDTH))
head = nn.Linear(WIDTH, 1)
weights = list(layer.parameters()) + list(head.parameters())
opt = torch.optim.AdamW(weights, lr=8e-3)
for it in range(32):
    raw, salt = readings(gen)
    there = ~torch.isnan(raw)
    x = torch.cat([torch.where(there, raw, torch.zeros(())), there.float()], 1)
    loss = (head(layer(x)) - salt).pow(2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(f"{it + 1:3d} loss={loss.item():.5f} forward rounds={layer.used[0]} backward rounds={layer.used[1]}")

print("abs weights: %.5f" % sum(w.abs().sum().item() for w in weights))
