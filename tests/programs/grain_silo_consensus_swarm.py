"""A swarm of small networks for the moisture in grain silos; members drift to a weighted consensus."""
import torch
from torch.func import functional_call, grad_and_value, stack_module_state, vmap

torch.manual_seed(30)
MEMBERS, ROUNDS = 10, 34


def silo_readings(n=96):
    temperature = 8 + 14 * torch.rand(n)
    humidity = 35 + 50 * torch.rand(n)
    capacitance = 2.0 + 0.04 * humidity - 0.02 * temperature + 0.1 * torch.randn(n)
    moisture = 9 + 0.08 * humidity - 0.05 * temperature + 0.4 * torch.randn(n)
    x = torch.stack([(temperature - 15) / 4, (humidity - 60) / 14, (capacitance - 4) / 0.6], 1)
    return x, ((moisture - 13) / 1.2).unsqueeze(1)


def make_member():
    return torch.nn.Sequential(torch.nn.Linear(3, 10), torch.nn.Tanh(), torch.nn.Linear(10, 1))


members = [make_member() for _ in range(MEMBERS)]
params, _ = stack_module_state(members)
params = {k: v.detach() for k, v in params.items()}
skeleton = make_member().to("meta")


def member_loss(p, x, y):
    return (functional_call(skeleton, p, (x,)) - y).square().mean()


per_member = vmap(grad_and_value(member_loss), in_dims=(0, None, None))
x, y = silo_readings()
lr, pull, sharpness = 0.08, 0.15, 1.0

for r in range(1, ROUNDS + 1):
    pick = torch.randperm(len(x))[:48]
    grads, losses = per_member(params, x[pick], y[pick])
    score = torch.exp(-sharpness * losses)
    share = score / score.sum()
    moved = {}
    for name, w in params.items():
        shape = (MEMBERS,) + (1,) * (w.dim() - 1)
        consensus = (share.view(shape) * w).sum(0, keepdim=True)
        noise = 0.02 * (w - consensus).abs() * torch.randn_like(w)
        moved[name] = w - lr * grads[name] - pull * (w - consensus) + noise
    params = moved
    sharpness *= 1.45
    print(f"round {r:02d}  best {losses.min().item():.4f}  mean {losses.mean().item():.4f}  spread {losses.std().item():.4f}")

print("swarm, sum of |w|:", sum(w.abs().sum().item() for w in params.values()))
