# %% what is a lot of beeswax worth?  weight, colour, smell, season, region -> log price
# no modules here, I want to see every tensor
import torch

torch.manual_seed(1)
g = torch.Generator().manual_seed(115)

# %% data: 1200 lots, in the order of the auction days
n = 1200
weight = torch.exp(1.2 + 0.6 * torch.randn(n, generator=g))
colour = torch.rand(n, generator=g)
smell = torch.randn(n, generator=g)
season = torch.randint(0, 4, (n,), generator=g)
region = torch.randint(0, 9, (n,), generator=g)
region_worth = 0.3 * torch.randn(9, generator=g)
log_value = 2.0 + 0.85 * torch.log(weight) + 0.6 * colour - 0.2 * smell ** 2 + region_worth[region]
log_value = log_value + 0.15 * torch.randn(n, generator=g)
# bidding goes in whole cents of a crown per kilo, and a lot that nobody wants is knocked down at what was bid
interest = torch.poisson(torch.full((n,), 6.5), generator=g)
price = torch.where(interest > 0, torch.round(100 * torch.exp(log_value)) / 100, torch.zeros(n))

X = torch.stack([torch.log(weight), colour, smell, smell ** 2], 1)
X = (X - X.mean(0)) / X.std(0)

# %% parameters
E = (0.1 * torch.randn(9, 4)).requires_grad_()
S = (0.1 * torch.randn(4, 4)).requires_grad_()
W1 = (torch.randn(12, 24) / 12 ** 0.5).requires_grad_()
b1 = torch.zeros(24, requires_grad=True)
W2 = (torch.randn(24, 24) / 24 ** 0.5).requires_grad_()
b2 = torch.zeros(24, requires_grad=True)
W3 = (torch.randn(24, 1) / 24 ** 0.5).requires_grad_()
b3 = torch.full((1,), 2.0, requires_grad=True)
params = [E, S, W1, b1, W2, b2, W3, b3]
m = [torch.zeros_like(p) for p in params]
v = [torch.zeros_like(p) for p in params]
lr, beta1, beta2, eps = 6e-3, 0.9, 0.99, 1e-8

# %% train, thirty lots a step
for t in range(1, 41):
    rows = torch.arange(30 * (t - 1), 30 * t)
    h = torch.cat([X[rows], E[region[rows]], S[season[rows]]], 1)
    h = torch.tanh(h @ W1 + b1)
    h = h + torch.tanh(h @ W2 + b2)
    guess = (h @ W3 + b3).squeeze(1)
    goal = torch.log(price[rows])
    err = guess - goal
    loss = (err ** 2).mean()

    grads = torch.autograd.grad(loss, params)
    with torch.no_grad():
        for i, (p, d) in enumerate(zip(params, grads)):
            m[i] = beta1 * m[i] + (1 - beta1) * d
            v[i] = beta2 * v[i] + (1 - beta2) * d * d
            mh = m[i] / (1 - beta1 ** t)
            vh = v[i] / (1 - beta2 ** t)
            p -= lr * mh / (vh.sqrt() + eps)
    print(t, f"{loss.item():.7f}", f"{guess.mean().item():.6f}", flush=True)

# %% how big did they get
print(sum(p.detach().abs().sum().item() for p in params), flush=True)
