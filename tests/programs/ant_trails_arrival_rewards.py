import torch

# Ants look for the way from the nest (0) to the food (15) on a 4x4 field with stones. What they learn is the
# pheromone on every pair of cells; ants that get lost have walked infinitely far.

INF = float("inf")
SIDE, NEST, FOOD = 4, 0, 15
STONES = {5, 10, 14}
PATIENCE = 8


def field():
    open_ = torch.zeros(SIDE * SIDE, SIDE * SIDE, dtype=torch.bool)
    for c in range(SIDE * SIDE):
        r, k = divmod(c, SIDE)
        for rr, kk in ((r - 1, k), (r + 1, k), (r, k - 1), (r, k + 1)):
            if 0 <= rr < SIDE and 0 <= kk < SIDE and not {c, rr * SIDE + kk} & STONES:
                open_[c, rr * SIDE + kk] = True
    return open_


def walk(pheromone, open_, ants):
    """Everybody walks at once and never back to the cell just left. Returns (log-probability, length)."""
    here = torch.full((ants,), NEST)
    last = torch.full((ants,), -1)
    logp = pheromone.new_zeros(ants)
    length = torch.full((ants,), INF)
    moving = torch.arange(ants)
    for hop in range(1, PATIENCE + 1):
        cells = here[moving]
        allowed = open_[cells].clone()
        known = last[moving] >= 0
        allowed[known.nonzero().squeeze(1), last[moving][known]] = False
        stuck = ~allowed.any(1)
        moving, cells, allowed = moving[~stuck], cells[~stuck], allowed[~stuck]
        if not len(moving):
            break
        scores = torch.where(allowed, pheromone[cells], torch.tensor(-INF)).log_softmax(1)
        nxt = torch.multinomial(scores.detach().exp(), 1)
        logp = logp.index_add(0, moving, scores.gather(1, nxt).squeeze(1))
        last[moving], here[moving] = cells, nxt.squeeze(1)
        home = here[moving] == FOOD
        length[moving[home]] = hop
        moving = moving[~home]
        if not len(moving):
            break
    return logp, length


torch.manual_seed(4)
open_ = field()
pheromone = torch.zeros(SIDE * SIDE, SIDE * SIDE, requires_grad=True)
trail = torch.optim.Adagrad([pheromone], lr=0.5)
shortest = INF

for wave in range(1, 46):
    logp, length = walk(pheromone, open_, ants=2)
    shortest = min(shortest, length.min().item())
    if torch.isinf(length).all():
        print("wave", wave, "nobody arrived, shortest so far", shortest)
        continue
    reward = FOOD / length
    loss = -(reward * logp).mean()
    trail.zero_grad()
    loss.backward()
    trail.step()
    with torch.no_grad():
        pheromone.mul_(0.98)
    print("wave", wave, "mean length", length.mean().item(), "shortest so far", shortest, "loss", round(loss.item(), 4))

print("pheromone squared", pheromone.detach().square().sum().item())
