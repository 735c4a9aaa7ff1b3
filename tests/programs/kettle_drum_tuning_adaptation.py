"""Meta-learning of drum tuning curves with torch.func: an initialisation that adapts to a drum from five strokes.

Task amplitudes grow in three stages (a curriculum), hence so does the loss.
"""
import torch
from torch.func import functional_call, grad, vmap
from tqdm import tqdm

torch.manual_seed(515)
rng = torch.Generator().manual_seed(516)

net = torch.nn.Sequential(torch.nn.Linear(1, 24), torch.nn.Tanh(), torch.nn.Linear(24, 24), torch.nn.Tanh(), torch.nn.Linear(24, 1))
params = {k: v.detach().clone().requires_grad_() for k, v in net.named_parameters()}
inner_lr = torch.full((len(params),), -3.0, requires_grad=True)
opt = torch.optim.Adam([*params.values(), inner_lr], lr=4e-3)


def drums(n, amplitude):
    a = amplitude * (0.5 + torch.rand(n, 1, 1, generator=rng))
    phase = 3.1 * torch.rand(n, 1, 1, generator=rng)
    x = 4 * torch.rand(n, 15, 1, generator=rng) - 2
    y = a * torch.sin(2 * x + phase)
    # strokes that were choked have no pitch
    choked = torch.rand(n, 15, 1, generator=rng) < 0.12
    choked[:, 0] = False
    choked[:, 5] = False
    y = y.masked_fill(choked, float("nan"))
    return (x[:, :5], y[:, :5]), (x[:, 5:], y[:, 5:])


def masked_mse(p, x, y):
    heard = ~torch.isnan(y)
    clean = torch.where(heard, y, torch.zeros_like(y))
    pred = functional_call(net, p, (x,))
    return (heard * (pred - clean) ** 2).sum() / heard.sum().clamp(min=1)


def adapted_loss(p, rates, xs, ys, xq, yq):
    fast = p
    for _ in range(2):
        gr = grad(masked_mse)(fast, xs, ys)
        fast = {k: fast[k] - r * gr[k] for k, r in zip(fast, rates)}
    return masked_mse(fast, xq, yq)


batched = vmap(adapted_loss, in_dims=(None, None, 0, 0, 0, 0))
raw = vmap(lambda p, x, y: (functional_call(net, p, (x,)) - y).pow(2).mean(), in_dims=(None, 0, 0))

for it in tqdm(range(1, 41), disable=True):
    amplitude = 1.0 if it <= 12 else 4.0 if it <= 26 else 12.0
    (xs, ys), (xq, yq) = drums(8, amplitude)
    rates = inner_lr.exp()
    losses = batched(params, rates, xs, ys, xq, yq)
    loss = losses.mean()
    opt.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_([*params.values(), inner_lr], 5.0)
    opt.step()
    with torch.no_grad():
        before = raw(params, xq, yq).mean()    # only for the eye; NaN where a drum has a choked stroke
    print(f"it {it} amp {amplitude:g} loss {loss.item():.6f} norm {norm.item():.5f} unadapted {before.item():.4f}", flush=True)

print("weights", round(sum(p.abs().sum().item() for p in [*params.values(), inner_lr]), 6), flush=True)
