"""Reptile (Nichol et al. 2018) on folded light curves: each task is one Cepheid, a few points of its phase curve."""
import copy, math, random
import torch
import torch.nn as nn

random.seed(6); torch.manual_seed(6)

def cepheid():
    amp, skew, shift = random.uniform(0.5, 2.0), random.uniform(0.0, 0.8), random.uniform(0, 2 * math.pi)
    def magnitude(phase):
        x = 2 * math.pi * phase + shift
        return amp * torch.sin(x + skew * torch.sin(x))
    return magnitude

def encode(phase):
    x = 2 * math.pi * phase
    return torch.cat([torch.sin(x), torch.cos(x)], dim=1)

meta_net = nn.Sequential(nn.Linear(2, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 1))
outer_rate = 0.6
n_outer, n_inner = 16, 5

for outer in range(n_outer):
    star = cepheid()
    phase = torch.rand(12, 1)
    target = star(phase)
    learner = copy.deepcopy(meta_net)
    inner_opt = torch.optim.SGD(learner.parameters(), lr=0.06)
    trace = []
    for k in range(n_inner):
        loss = nn.functional.mse_loss(learner(encode(phase)), target)
        inner_opt.zero_grad()
        loss.backward()
        inner_opt.step()
        trace.append(loss.item())
        print(f"star {outer:2d} inner {k} loss {loss.item():.6f}")
    # the initialisation moves towards the adapted weights; no optimizer takes part in that
    eps = outer_rate * (1 - outer / n_outer)
    with torch.no_grad():
        for w, adapted in zip(meta_net.parameters(), learner.parameters()):
            w.lerp_(adapted, eps)
        check = torch.linspace(0, 1, 50)[:, None]
        rms = (learner(encode(check)) - star(check)).pow(2).mean().sqrt()
    print(f"star {outer:2d} gain {trace[0] / max(trace[-1], 1e-9):9.3f} rms {rms.item():.5f}")
    del learner, inner_opt

print("final", sum(w.abs().sum().item() for w in meta_net.parameters()))
