# Will tomorrow be a migraine day?  Diaries are private: DP-SGD with Poisson lots and
# per-example clipping (torch.func), Gaussian noise on the sum.
import argparse
import math

import torch
from torch import nn
from torch.func import functional_call, grad_and_value, vmap

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=55)
parser.add_argument("--rate", type=float, default=0.01, help="Poisson sampling rate")
parser.add_argument("--clip", type=float, default=1.0)
parser.add_argument("--sigma", type=float, default=0.6)
parser.add_argument("--lr", type=float, default=0.15)
parser.add_argument("--seed", type=int, default=3)
args = parser.parse_args()

torch.manual_seed(args.seed)
noise_gen = torch.Generator().manual_seed(args.seed + 1)
lot_gen = torch.Generator().manual_seed(args.seed + 2)

# ---------------------------------------------------------------- data: sleep, caffeine, weather, ...
N, D = 320, 9
true_w = torch.randn(D)
diary = torch.randn(N, D)
label = torch.sign(diary @ true_w + 0.2 * torch.randn(N))

net = nn.Sequential(nn.Linear(D, 12), nn.ReLU(), nn.Linear(12, 1))
params = dict(net.named_parameters())
opt = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.5)


def one_loss(p, x, y):
    score = functional_call(net, p, (x.unsqueeze(0),)).squeeze()
    return torch.relu(1.0 - y * score)          # hinge: exactly zero once the diary is well predicted


per_example = vmap(grad_and_value(one_loss), in_dims=(None, 0, 0))


def clipped_sum(grads):
    """Sum of per-example gradients, each scaled to norm <= clip."""
    flat = torch.cat([g.flatten(1) for g in grads.values()], dim=1)
    norms = flat.norm(dim=1)
    factor = (args.clip / norms).clamp(max=1.0)      # a diary without gradient: clip/0 = inf, clamped to 1
    return {k: torch.einsum("b,b...->...", factor, g) for k, g in grads.items()}, norms


def epsilon_spent(steps, rate, sigma, delta=1e-4):
    """Rough moments bound, for the log only."""
    best = math.inf
    for order in range(2, 64):
        rdp = steps * rate * rate * order / (sigma * sigma)
        best = min(best, rdp + math.log(1 / delta) / (order - 1))
    return best


expected = args.rate * N
zero_grads = empty = 0
for step in range(1, args.steps + 1):
    lot = torch.nonzero(torch.rand(N, generator=lot_gen) < args.rate).squeeze(1)
    opt.zero_grad(set_to_none=True)
    if len(lot):
        detached = {k: v.detach() for k, v in params.items()}
        grads, losses = per_example(detached, diary[lot], label[lot])
        summed, norms = clipped_sum(grads)
        zero_grads += int((norms == 0).sum())
    else:
        # An empty lot must still be answered with noise, else the mechanism leaks that it was empty.
        losses = torch.zeros(0)
        summed = {k: torch.zeros_like(v) for k, v in params.items()}
        empty += 1
    for k, p in params.items():
        noise = torch.randn(p.shape, generator=noise_gen) * args.sigma * args.clip
        p.grad = (summed[k].detach() + noise) / expected
    opt.step()
    shown = losses.mean().item()
    print(f"step {step:3d} lot {len(lot)} mean hinge {shown:.6f} eps {epsilon_spent(step, args.rate, args.sigma):.4f}",
          flush=True)

with torch.no_grad():
    acc = (torch.sign(net(diary).squeeze(1)) == label).float().mean().item()
print(f"empty lots {empty}, diaries without gradient {zero_grads}, accuracy {acc:.4f}", flush=True)
print(f"weights {sum(p.detach().abs().sum().item() for p in net.parameters()):.6f}", flush=True)
