import copy
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

torch.manual_seed(17)
torch.set_num_threads(1)
K = 4


def member():
    return nn.Sequential(nn.Linear(5, 12, bias=False), nn.ReLU(), nn.Linear(12, 1, bias=False))


members = [member() for _ in range(K)]
params, buffers = stack_module_state(members)
skeleton = copy.deepcopy(members[0]).to("meta")


def call_one(p, b, x):
    return functional_call(skeleton, (p, b), (x,)).squeeze(-1)


ensemble = vmap(call_one, in_dims=(0, 0, None))


def epistemic(pred):
    centred = pred - pred.mean(0)
    return centred.pow(2).mean(0).sqrt()


def objective(x, y, lam=0.05):
    pred = ensemble(params, buffers, x)
    fit = (pred - y).square().mean()
    # keep the members apart, otherwise the uncertainty is worthless
    return fit - lam * epistemic(pred).mean(), fit


optimizer = torch.optim.Adam(list(params.values()), lr=5e-3)
for it in range(1, 17):
    x = torch.randn(24, 5)
    y = x.sum(1).sin()
    if it == 11:
        x[0], y[0] = 0.0, 0.0      # origin added as an anchor point
    loss, fit = objective(x, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"it {it:02d} loss {loss.item():+.5f} fit {fit.item():.5f}")
print("weights", sum(p.double().sum().item() for p in params.values()))
