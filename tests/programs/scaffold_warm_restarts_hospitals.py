"""SCAFFOLD (Karimireddy et al. 2020, control variates by option II) on four hospitals with
different case mixes; the local learning rate follows a cosine with warm restarts over the rounds."""
import math
import torch
import torch.nn.functional as F

torch.set_default_dtype(torch.float64)
torch.manual_seed(6)
HOSPITALS, ROUNDS, K = 4, 15, 3
PERIOD, TOP = 8, 0.4


def cohort(h, n=90):
    x = torch.randn(n, 7) + 0.5 * torch.randn(7) * h
    logit = x[:, 0] - 0.7 * x[:, 1] * x[:, 2] + 0.3 * h
    return x, (torch.rand(n) < torch.sigmoid(logit)).double()


cohorts = [cohort(h) for h in range(HOSPITALS)]
net = torch.nn.Sequential(torch.nn.Linear(7, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
params = list(net.parameters())

server = [p.detach().clone() for p in params]
c = [torch.zeros_like(p) for p in server]
ci = [[torch.zeros_like(p) for p in server] for _ in range(HOSPITALS)]


def local_lr(r):
    return 0.5 * TOP * (1 + math.cos(math.pi * (r % PERIOD) / (PERIOD - 1)))


step = 0
for r in range(ROUNDS):
    lr = local_lr(r)
    new_weights = [torch.zeros_like(p) for p in server]
    delta_c = [torch.zeros_like(p) for p in server]
    for h, (x, y) in enumerate(cohorts):
        with torch.no_grad():
            for p, s in zip(params, server):
                p.copy_(s)
        opt = torch.optim.SGD(params, lr=lr)
        for k in range(K):
            step += 1
            rows = torch.randint(len(y), (30,))
            loss = F.binary_cross_entropy_with_logits(net(x[rows])[:, 0], y[rows])
            opt.zero_grad()
            loss.backward()
            for p, all_, own in zip(params, c, ci[h]):
                p.grad.add_(all_ - own)
            opt.step()
            print(f"{step:3d} round {r} hospital {h} loss {loss.item():.10f}")
        # option II: c_i+ = c_i - c + (x - y_i) / (K * lr)
        with torch.no_grad():
            for j, p in enumerate(params):
                fresh = ci[h][j] - c[j] + (server[j] - p) / (K * lr)
                delta_c[j] += (fresh - ci[h][j]) / HOSPITALS
                ci[h][j] = fresh
                new_weights[j] += p / HOSPITALS
    server = new_weights
    c = [a + b for a, b in zip(c, delta_c)]

print("final", sum(s.abs().sum().item() for s in server))
