import torch, torch.nn as nn

torch.manual_seed(40)
net = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
opt = torch.optim.Adam(net.parameters(), 0.02)


def score(x, y):
    return -(net(x) - y).pow(2).mean().item()


for p in net.parameters():
    p.requires_grad_(False)
for it in range(15):
    x = torch.randn(16, 3)
    y = x.sum(1, keepdim=True)
    eps = [[torch.randn_like(p) for p in net.parameters()] for _ in range(6)]
    rs = []
    for e in eps:
        for p, d in zip(net.parameters(), e):
            p.add_(0.1 * d)
        rs.append(score(x, y))
        for p, d in zip(net.parameters(), e):
            p.sub_(0.1 * d)
    r = torch.tensor(rs)
    r = (r - r.mean()) / r.std()
    for i, p in enumerate(net.parameters()):
        p.grad = -sum(a * e[i] for a, e in zip(r, eps)) / 6
    opt.step()
print(score(x, y))
