# PETS-like ensemble for a brick kiln: predicts delta temperature of four zones from burner settings.
# The NLL has no constant and goes well below zero (sensor noise is 0.01), that is what we want.
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(5)
g = torch.Generator().manual_seed(5)
N_MODELS, ELITES, S, A = 7, 5, 4, 3


class EnsembleLinear(nn.Module):
    def __init__(self, k, i, o, decay):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(k, i, o))
        nn.init.trunc_normal_(self.weight, std=1 / (2 * i ** 0.5))
        self.bias = nn.Parameter(torch.zeros(k, 1, o))
        self.decay = decay

    def forward(self, x):
        return torch.baddbmm(self.bias, x, self.weight)


class Dynamics(nn.Module):
    def __init__(self, hidden=64):
        super().__init__()
        self.layers = nn.ModuleList([EnsembleLinear(N_MODELS, S + A, hidden, 2.5e-5),
                                     EnsembleLinear(N_MODELS, hidden, hidden, 5e-5),
                                     EnsembleLinear(N_MODELS, hidden, 2 * S, 1e-4)])
        self.max_logvar = nn.Parameter(torch.full((S,), 0.5))
        self.min_logvar = nn.Parameter(torch.full((S,), -10.0))

    def forward(self, x):
        for l in self.layers[:-1]:
            x = F.silu(l(x))
        mu, lv = self.layers[-1](x).chunk(2, -1)
        lv = self.max_logvar - F.softplus(self.max_logvar - lv)
        lv = self.min_logvar + F.softplus(lv - self.min_logvar)
        return mu, lv

    def decay_loss(self):
        return sum(l.decay * l.weight.pow(2).sum() / 2 for l in self.layers)


M = torch.randn(S + A, S, generator=g) * 0.3


def kiln(s, a):
    return torch.tanh(torch.cat([s, a], -1) @ M) * 0.2 + 0.01 * torch.randn(s.shape, generator=g)


s = torch.randn(3000, S, generator=g)
a = torch.rand(3000, A, generator=g) * 2 - 1
d = kiln(s, a)
mean, std = torch.cat([s, a], -1).mean(0), torch.cat([s, a], -1).std(0)
X = (torch.cat([s, a], -1) - mean) / std
x_tr, y_tr, x_ho, y_ho = X[:2600], d[:2600], X[2600:], d[2600:]
boot = torch.randint(0, 2600, (N_MODELS, 2600), generator=g)  # every member has its own bootstrap

net = Dynamics()
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
best = torch.full((N_MODELS,), float("inf"))   # nothing seen yet
elite = list(range(ELITES))
step = 0
for epoch in range(6):
    boot = torch.stack([row[torch.randperm(2600, generator=g)] for row in boot])
    for lo in range(0, 2600 - 255, 256):
        idx = boot[:, lo:lo + 256]
        mu, lv = net(x_tr[idx])
        inv = torch.exp(-lv)
        # summed over members: each has to see its own gradient undivided
        mse = ((mu - y_tr[idx]) ** 2 * inv).mean((1, 2)).sum()
        var = lv.mean((1, 2)).sum()
        loss = mse + var + 0.01 * (net.max_logvar.sum() - net.min_logvar.sum()) + net.decay_loss()
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        step += 1
        print(f"{step:03d} epoch {epoch} nll {loss.item():+.6f} (fit {mse.item():.5f}, logvar {var.item():.5f})")
    with torch.no_grad():
        mu, _ = net(x_ho.expand(N_MODELS, -1, -1))
        hold = ((mu - y_ho) ** 2).mean((1, 2))
        gain = (best - hold) / best            # nan in the first epoch: inf / inf, only shown
        best = torch.minimum(best, hold)
        elite = hold.argsort()[:ELITES].tolist()
    print(f"    elites {elite} holdout {hold.mean().item():.6f} gain {gain.mean().item():.4f}")

# a short imagined rollout, to see that it does not run off
with torch.no_grad():
    z = s[:16].clone()
    for h in range(8):
        u = torch.rand(16, A, generator=g) * 2 - 1
        inp = (torch.cat([z, u], -1) - mean) / std
        mu, lv = net(inp.expand(N_MODELS, -1, -1))
        z = z + mu[elite[h % ELITES]]
print("rollout spread", f"{z.std().item():.5f}", "weights", sum(p.sum().item() for p in net.parameters()))
