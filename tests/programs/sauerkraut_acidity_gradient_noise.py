# pH of fermenting sauerkraut from hours, salt, temperature
# one hidden layer, raw tensors, my own rate schedule and annealed gradient noise (Neelakantan 2015)
import math
import torch

torch.set_default_dtype(torch.float32)

# random numbers: congruential generator, the same on every machine
seed = 1977


def draw(count):
    global seed
    out = []
    for _ in range(count):
        seed = (25173 * seed + 13849) % 65536
        out.append(seed)
    return torch.tensor(out, dtype=torch.float32) / 65536


def bell(shape):
    # Box-Muller
    n = math.prod(shape)
    pairs = draw(2 * n).view(n, 2)
    radius = torch.sqrt(-2 * torch.log(pairs[:, 0]))
    return (radius * torch.cos(2 * math.pi * pairs[:, 1])).view(shape)


jars = 120
hours = 20 + 200 * draw(jars)
salt = 1.5 + 1.5 * draw(jars)
warmth = 14 + 10 * draw(jars)
ph = 3.4 + 2.8 * torch.exp(-hours / 90 * (warmth / 20) / (salt / 2)) + 0.03 * bell((jars,))
inputs = torch.stack([(hours - 120) / 60, (salt - 2.25) / 0.45, (warmth - 19) / 3], dim=1)
target = (ph - 4.2) / 0.6

w1 = (0.6 * bell((3, 14))).requires_grad_()
b1 = torch.zeros(14, requires_grad=True)
w2 = (0.3 * bell((14, 1))).requires_grad_()
b2 = torch.zeros(1, requires_grad=True)
weights = [w1, b1, w2, b2]
sgd = torch.optim.SGD(weights, lr=0.1, momentum=0.5)

updates = 42
for t in range(updates):
    # rise for six updates, then a hyperbola, with a dip at every tenth
    rate = 0.02 * (t + 1) if t < 6 else 0.12 / (1 + 0.05 * (t - 6))
    if t % 10 == 9:
        rate *= 0.5
    sgd.param_groups[0]['lr'] = rate

    which = (torch.arange(30) + 30 * t) % jars
    hidden = torch.tanh(inputs[which] @ w1 + b1)
    error = (hidden @ w2 + b2)[:, 0] - target[which]
    cost = (error * error).mean()

    sgd.zero_grad()
    cost.backward()
    sigma = math.sqrt(0.02 / (1 + t) ** 0.55)
    for w in weights:
        w.grad += sigma * bell(tuple(w.shape))
    sgd.step()
    print('update', t + 1, 'rate', round(rate, 5), 'cost', round(cost.item(), 6))

print('sum of squared weights', sum((w.detach() ** 2).sum().item() for w in weights))
