import torch, torch.nn as nn

torch.manual_seed(34)
trunk, h1, h2 = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, 3)
ps = [*trunk.parameters(), *h1.parameters(), *h2.parameters()]
opt = torch.optim.Adam(ps, 1e-3)
for i in range(15):
    x = torch.randn(9, 6)
    f = torch.relu(trunk(x))
    sig = h1(f)[:, 0]
    if i == 6:
        sig = sig * 0
    ls = [(sig.abs().sqrt() - x.sum(1)).pow(2).mean(), nn.functional.cross_entropy(h2(f), torch.randint(0, 3, (9,)))]
    gs = [torch.autograd.grad(l, ps, retain_graph=True, allow_unused=True) for l in ls]
    opt.zero_grad()
    for p, *g in zip(ps, *gs):
        g = [k for k in g if k is not None]
        p.grad = sum(g) if g else None
    opt.step()
print([l.item() for l in ls])
