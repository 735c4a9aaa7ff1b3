# How long do wooden ships last?  Gompertz hazard a * exp(b t), gradient ascent by hand.
import torch

g = torch.Generator().manual_seed(40)
n = 300
oak = (torch.rand(n, generator=g) < 0.5).float()
copper = (torch.rand(n, generator=g) < 0.3).float()
tons = torch.randn(n, generator=g)
x = torch.stack([torch.ones(n), oak, copper, tons], 1)

# many are lost on their first voyages, few later
scale = torch.exp(1.6 + 0.5 * oak + 0.4 * copper)
u = torch.rand(n, generator=g)
life = scale * (-torch.log(u)) ** (1 / 0.75)
watch = 4 + 20 * torch.rand(n, generator=g)
t = torch.minimum(life, watch) / 10.0
lost = (life <= watch).float()
print(f"{n} hulls, {int(lost.sum())} lost, the rest afloat at the end of the register")

beta = torch.zeros(4, requires_grad=True)
b = torch.tensor(0.9, requires_grad=True)


def log_likelihood(beta, b):
    log_a = x @ beta
    cumulative = torch.exp(log_a) * (torch.exp(b * t) - 1) / b
    return (lost * (log_a + b * t) - cumulative).mean()


rate = 0.4
for step in range(1, 36):
    ll = log_likelihood(beta, b)
    ll.backward()
    with torch.no_grad():
        beta += rate * beta.grad
        b += rate * b.grad
        b.clamp_(min=0.0)          # ageing never makes a hull stronger
        beta.grad.zero_()
        b.grad.zero_()
    print(f"{step:2d}  log-likelihood per hull {ll.item():.6f}  b {b.item():.4f}")

print("hazard ratios", [round(v, 3) for v in beta.exp().tolist()])
print("sum of absolute coefficients", beta.abs().sum().item() + b.abs().item())
