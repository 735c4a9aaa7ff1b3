import torch

# Fungal taxonomy in the Lorentz (hyperboloid) model, after Nickel & Kiela 2018: transitive closure of
# the tree, Riemannian SGD with the exact exponential map, a thirty times smaller rate while burning in.

torch.manual_seed(1821)
LEVELS = [1, 4, 16, 130]               # kingdom, phyla, classes, species
start = [sum(LEVELS[:k]) for k in range(len(LEVELS))]
N = sum(LEVELS)

pairs = []
for lvl in range(1, len(LEVELS)):
    for i in range(LEVELS[lvl]):
        node, j = start[lvl] + i, i
        for up in range(lvl - 1, -1, -1):
            j = j * LEVELS[up] // LEVELS[up + 1]
            pairs.append((node, start[up] + j))
U = torch.tensor([a for a, _ in pairs])
V = torch.tensor([b for _, b in pairs])


def lorentz(x, y, keepdim=False):
    p = x * y
    return p[..., 1:].sum(-1, keepdim=keepdim) - p[..., :1].sum(-1, keepdim=keepdim)


def to_hyperboloid(s):
    return torch.cat([torch.sqrt(1 + s.square().sum(-1, keepdim=True)), s], -1)


class RiemannianSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                g = p.grad.clone()
                g[..., 0].neg_()                                   # inverse metric
                g = g + lorentz(p, g, keepdim=True) * p            # on the tangent space
                v = -group["lr"] * g
                size = lorentz(v, v, keepdim=True).clamp(min=1e-12).sqrt()
                moved = torch.cosh(size) * p + torch.sinh(size) * v / size
                p.copy_(to_hyperboloid(moved[..., 1:]))


emb = torch.nn.Parameter(to_hyperboloid(torch.randn(N, 5) * 0.05))
RATE, BURN_IN = 1.0, 20
opt = RiemannianSGD([emb], lr=RATE / 30)

for epoch in range(1, 61):
    if epoch == BURN_IN + 1:
        opt.param_groups[0]["lr"] = RATE
    noise = torch.randint(N - 1, (len(pairs), 5))
    noise = noise + (noise >= U[:, None]).long()          # anybody but the node itself
    others = torch.cat([V[:, None], noise], 1)
    dist = torch.acosh((-lorentz(emb[U][:, None], emb[others])).clamp(min=1 + 1e-6))
    loss = torch.logsumexp(-dist, 1).add(dist[:, 0]).sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("epoch %2d  loss %.5f  per pair %.6f" % (epoch, loss.item(), loss.item() / len(pairs)))

print("final", emb.detach().abs().sum().item())
