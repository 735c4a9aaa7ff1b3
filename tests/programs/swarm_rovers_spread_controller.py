# Nine rovers, one controller: spread over the field, but stay in radio range of somebody.
# The simulation is differentiated through; vmap runs a handful of fields at once.
import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

ROVERS, TICKS, FIELDS = 9, 6, 8
RADIO = 0.9
INF = float("inf")

torch.manual_seed(16)
brain = nn.Sequential(nn.Linear(6, 16), nn.SiLU(), nn.Linear(16, 2))


def gaps(pos):
    delta = pos[:, None] - pos[None]
    me = torch.eye(ROVERS, dtype=torch.bool)
    squared = (delta * delta).sum(-1) + me.float()
    return delta, squared.sqrt().masked_fill(me, INF)


def look(pos):
    delta, dist = gaps(pos)
    far = torch.where(dist > RADIO, INF, dist)
    push = (delta / (far * far * far)[..., None]).sum(1)
    heard = (1 / far).sum(1, keepdim=True)
    nearest = dist.min(1, keepdim=True).values
    return torch.cat([0.05 * push.clamp(-40, 40), pos, nearest, 0.1 * heard], dim=1)


def drive(params, start):
    pos = start
    for _ in range(TICKS):
        pos = pos + 0.15 * torch.tanh(functional_call(brain, params, (look(pos),)))
    return pos


def utility_lost(params, start):
    pos = drive(params, start)
    _, dist = gaps(pos)
    nearest = dist.min(1).values
    alone = (nearest - 0.8 * RADIO).clamp(min=0)
    fence = (pos.abs() - 1.5).clamp(min=0).sum(1)
    return (-nearest + 4 * alone + 2 * fence).mean()


def main():
    names = [n for n, _ in brain.named_parameters()]
    opt = torch.optim.Adam(brain.parameters(), lr=0.01)
    per_field = vmap(grad_and_value(utility_lost), in_dims=(None, 0))
    for sortie in range(1, 31):
        size = 0.25 if sortie < 18 else 0.6         # from the eighteenth sortie on they are dropped from higher up
        start = size * torch.randn(FIELDS, ROVERS, 2)
        live = {n: p.detach() for n, p in zip(names, brain.parameters())}
        grads, losses = per_field(live, start)
        for n, p in zip(names, brain.parameters()):
            p.grad = grads[n].mean(0)
        opt.step()
        reach = torch.where(vmap(lambda s: gaps(s)[1])(start) > RADIO, INF, 1.0).amin(-1)
        print(f"sortie {sortie:2d}  lost {losses.mean().item():+.5f}  rovers dropped out of earshot "
              f"{int(torch.isinf(reach).sum())}")
    print(f"controller, sum of squares {sum(p.detach().pow(2).sum().item() for p in brain.parameters()):.6f}")


main()
