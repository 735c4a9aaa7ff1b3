# Sizing the bars of a small bridge. Topology (which bars exist) is evolved,
# cross-sections are descended with Adam, all designs of the population at once.
import torch

torch.manual_seed(21)
torch.set_default_dtype(torch.float64)

nodes = torch.tensor([[0, 0], [1, 0], [2, 0], [3, 0], [4, 0], [1, 1], [2, 1], [3, 1]]).double()
bars = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (0, 5), (4, 7), (1, 5), (2, 6), (3, 7),
        (1, 6), (2, 5), (2, 7), (3, 6)]
fixed = [0, 1, 9]                                   # pin at the left, roller at the right
free = [d for d in range(16) if d not in fixed]
load = torch.zeros(16)
load[[3, 5, 7]] = torch.tensor([-1.0, -1.5, -1.0])

start, end = (torch.tensor(c) for c in zip(*bars))
span = nodes[end] - nodes[start]
length = span.norm(dim=1)
cosine = span / length[:, None]
B = torch.zeros(16, len(bars))
for j in range(len(bars)):
    for axis in range(2):
        B[2 * start[j] + axis, j] = -cosine[j, axis]
        B[2 * end[j] + axis, j] = cosine[j, axis]
B = B[free]

POP, ELITE, LIMIT = 18, 6, 4.0
genes = torch.nn.Parameter(0.3 * torch.randn(POP, len(bars)) - 0.2)     # log of the sections
exists = torch.rand(POP, len(bars)) > 0.12
opt = torch.optim.Adam([genes], lr=0.05, betas=(0.8, 0.95))


def stiffness(section):
    return torch.einsum("dj,pj,ej->pde", B, section / length, B)


def assess(log_section, mask):
    section = log_section.exp() * mask
    u = torch.linalg.solve(stiffness(section), load[free].expand(len(mask), -1))
    stress = (u @ B) / length * mask
    mass = (section * length).sum(1)
    over = (stress.abs() / LIMIT - 1).clamp(min=0)
    return mass + 20 * (over ** 2).sum(1)


for generation in range(1, 33):
    with torch.no_grad():
        lowest = torch.linalg.eigvalsh(stiffness(genes.exp() * exists))[:, 0]
    stands = lowest > 1e-6
    cost = torch.full((POP,), float("inf"))
    alive = assess(genes[stands], exists[stands])
    cost[stands] = alive.detach()

    opt.zero_grad()
    alive.sum().backward()
    opt.step()

    rank = cost.argsort()
    print(f"generation {generation} best {cost.min():.4f} mean {cost.mean():.4f} collapsed {int((~stands).sum())}")
    if generation % 2 == 0:
        parents, weakest = rank[:ELITE], rank[-ELITE:]
        with torch.no_grad():
            mates = parents[torch.randperm(ELITE)]
            cross = torch.rand(ELITE, len(bars)) < 0.5
            genes[weakest] = torch.where(cross, genes[parents], genes[mates]) + 0.1 * torch.randn(ELITE, len(bars))
            flip = torch.rand(ELITE, len(bars)) < 0.06
            exists[weakest] = torch.where(cross, exists[parents], exists[mates]) ^ flip
            for moment in ("exp_avg", "exp_avg_sq"):
                opt.state[genes][moment][weakest] = 0.0

print("bars of the best design:", int(exists[cost.argmin()].sum()))
print("sum of |log section|", genes.detach().abs().sum().item())
