import torch, torch.nn as nn

torch.manual_seed(34)
trunk, h1, h2 = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, 3)
ps = [*trunk.parameters(), *h1.parameters(), *h2.parameters()]
opt = torch.optim.Adam(ps, 1e-3)
for i in range(15):
    x = torch.randn(9, 6)
    f = torch.relu(trunk(x))
    ls = [(h1(f)[:, 0] - x.sum(1)).pow(2).mean(), nn.functional.cross_entropy(h2(f), torch.randint(0, 3, (9,)))]
    gs = [torch.autograd.grad(l, ps, retain_graph=True, allow_unused=True) for l in ls]
    flat = [
        torch.cat([torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(ps, gr)]) for gr in gs
    ]
    d = flat[0] @ flat[1]
    if d < 0:
        flat[0] = flat[0] - d / flat[1].pow(2).sum() * flat[1]
    tot, o = flat[0] + flat[1], 0
    for p in ps:
        p.grad = tot[o : o + p.numel()].view_as(p).clone()
        o += p.numel()
    opt.step()
print([l.item() for l in ls])
