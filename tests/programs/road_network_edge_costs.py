"""Learn the travel cost of road segments from observed trip durations (differentiable Bellman-Ford)."""
import torch
from torch import nn

torch.manual_seed(5)
N_NODES, N_EDGES, N_FEAT = 36, 110, 5
SOURCES_PER_STEP = 6


def make_city():
    src = torch.randint(0, N_NODES, (N_EDGES,))
    dst = torch.randint(0, N_NODES - 3, (N_EDGES,))     # the last three junctions can only be left
    keep = src != dst
    src, dst = src[keep], dst[keep]
    feats = torch.rand(len(src), N_FEAT)                # length, lanes, slope, signals, roughness
    true_cost = 0.2 + 3.0 * feats[:, 0] / (0.5 + feats[:, 1]) + 0.8 * feats[:, 3]
    return src, dst, feats, true_cost


def weight_matrix(src, dst, cost):
    w = torch.full((N_NODES, N_NODES), float("inf"))
    w = w.index_put((src, dst), cost)
    return w


def relax(w, sources, rounds=12):
    """All distances from each of the sources; what cannot be reached stays at infinity."""
    dist = torch.full((len(sources), N_NODES), float("inf"))
    dist[torch.arange(len(sources)), sources] = 0.0
    for _ in range(rounds):
        through = (dist[:, :, None] + w[None]).amin(dim=1)
        dist = torch.minimum(dist, through)
    return dist


def unique_edges(src, dst):
    seen, keep = set(), []
    for i, pair in enumerate(zip(src.tolist(), dst.tolist())):
        if pair not in seen:
            seen.add(pair)
            keep.append(i)
    return torch.tensor(keep)


def main():
    src, dst, feats, true_cost = make_city()
    first = unique_edges(src, dst)
    src, dst, feats, true_cost = src[first], dst[first], feats[first], true_cost[first]
    with torch.no_grad():
        w_true = weight_matrix(src, dst, true_cost)

    net = nn.Sequential(nn.Linear(N_FEAT, 24), nn.Tanh(), nn.Linear(24, 1), nn.Softplus())
    opt = torch.optim.Adamax(net.parameters(), lr=2e-2)
    best = float("inf")

    for it in range(1, 36):
        sources = torch.randint(0, N_NODES, (SOURCES_PER_STEP,))
        with torch.no_grad():
            observed = relax(w_true, sources)
        cost = net(feats).squeeze(-1)
        predicted = relax(weight_matrix(src, dst, cost), sources)
        known = torch.isfinite(observed)
        loss = nn.functional.smooth_l1_loss(predicted[known], observed[known])
        opt.zero_grad()
        loss.backward()
        opt.step()
        best = min(best, loss.item())
        unreachable = int((~torch.isfinite(predicted)).sum())
        print(f"it {it:3d}  loss {loss.item():.5f}  unreachable {unreachable}")

    print(f"best {best:.5f}")
    print("finite", int(all(p.isfinite().all() for p in net.parameters())))


if __name__ == "__main__":
    main()
