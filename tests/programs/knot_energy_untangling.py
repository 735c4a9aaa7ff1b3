# Moebius energy of a closed polygon, after O'Hara: pull a wild trefoil tight into a smooth one
import torch

torch.manual_seed(2)
torch.set_default_dtype(torch.float64)

N = 72
t = torch.arange(N) * 2 * torch.pi / N
P = torch.stack([torch.sin(t) + 2 * torch.sin(2 * t), torch.cos(t) - 2 * torch.cos(2 * t), -torch.sin(3 * t)], 1)
P = (P + 0.02 * torch.randn(N, 3)).requires_grad_()

idx = torch.arange(N)
hop = (idx[:, None] - idx[None]).abs()
hop = torch.minimum(hop, N - hop)
SELF = torch.where(hop < 2, torch.inf, 0.0)          # a vertex does not repel itself nor its neighbours


def edges(p):
    return p.roll(-1, 0) - p


def energy(p):
    e = edges(p)
    length = e.norm(dim=1)
    along = torch.cat([length.new_zeros(1), length.cumsum(0)])
    total = along[-1]
    arc = (along[:-1, None] - along[None, :-1]).abs()
    arc = torch.minimum(arc, total - arc)
    d2 = (p[:, None] - p[None]).square().sum(-1) + SELF
    a2 = arc.square() + SELF
    dens = (1 / d2 - 1 / a2) * (length[:, None] * length[None])
    even = (length / length.mean() - 1).square().sum()
    return dens.sum() + 3.0 * even


def writhe(p):
    e, m = edges(p), 0.5 * (p + p.roll(-1, 0))
    r = m[:, None] - m[None]
    tri = torch.einsum("ijk,ijk->ij", torch.linalg.cross(e[:, None].expand(N, N, 3), e[None].expand(N, N, 3)), r)
    return (tri / r.norm(dim=-1) ** 3)                # 0/0 on the diagonal, which the caller leaves out


opt = torch.optim.ASGD([P], lr=1e-4, lambd=0.0, t0=20)
shortest = float("inf")
for it in range(60):
    opt.zero_grad()
    E = energy(P)
    E.backward()
    opt.step()
    with torch.no_grad():
        # the energy does not know scale or place: keep the knot at the origin, at length 2 pi
        P.data = P.data - P.data.mean(0)
        P.data = P.data * (2 * torch.pi / edges(P.data).norm(dim=1).sum())
        w = writhe(P)
        shortest = min(shortest, edges(P).norm(dim=1).min().item())
    if it % 4 == 3:
        print(f"{it + 1:3d} energy {E.item():.6f} writhe {w.nansum().item() / (4 * torch.pi):+.4f} "
              f"plain mean {w.mean().item()}", flush=True)

print("shortest edge seen", shortest)
