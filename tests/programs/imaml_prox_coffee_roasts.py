# Few-shot roast curves: bean temperature over time, one task = one bean, 5 probes to adapt on.
# MAML with second-order gradients. After the warm-up a proximal term keeps the adapted weights
# close to the meta-weights (the distance itself and not its square: it should not vanish).
import math
import torch
import torch.nn.functional as F

torch.manual_seed(31)
SHOTS, INNER, ALPHA, RHO, WARMUP = 5, 3, 0.08, 0.05, 14

meta = {
    'w1': torch.randn(16, 1) * 0.8, 'b1': torch.randn(16) * 0.5,
    'w2': torch.randn(16, 16) / 4, 'b2': torch.zeros(16),
    'w3': torch.randn(1, 16) / 4, 'b3': torch.zeros(1),
}
meta = {k: v.requires_grad_() for k, v in meta.items()}


def curve(p, minutes):
    h = torch.tanh(F.linear(minutes, p['w1'], p['b1']))
    h = torch.tanh(F.linear(h, p['w2'], p['b2']))
    return F.linear(h, p['w3'], p['b3'])


def bean(g):
    """turning point, slope and first crack of one bean; returns support and query"""
    dip = 0.3 + 0.4 * torch.rand(1, generator=g)
    rise = 0.8 + 0.6 * torch.rand(1, generator=g)
    t = 2 * torch.rand(SHOTS + 15, 1, generator=g) - 1
    y = rise * t - dip * torch.exp(-((t + 0.7) ** 2) / 0.1) + 0.02 * torch.randn(t.shape, generator=g)
    return (t[:SHOTS], y[:SHOTS]), (t[SHOTS:], y[SHOTS:])


def distance(a, b):
    return torch.cat([(a[k] - b[k]).flatten() for k in a]).norm()


def adapt(support, near):
    fast = dict(meta)
    for _ in range(INNER):
        fit = F.mse_loss(curve(fast, support[0]), support[1])
        if near:
            fit = fit + RHO * distance(fast, meta)
        names = list(fast)
        grads = torch.autograd.grad(fit, [fast[n] for n in names], create_graph=True)
        fast = {n: fast[n] - ALPHA * gr for n, gr in zip(names, grads)}
    return fast


outer = torch.optim.Adam(meta.values(), lr=4e-3)
gen = torch.Generator().manual_seed(8)
for it in range(1, 46):
    outer.zero_grad()
    total = 0.0
    for _ in range(4):
        support, query = bean(gen)
        fast = adapt(support, near=it > WARMUP)
        total = total + F.mse_loss(curve(fast, query[0]), query[1]) / 4
    total.backward()
    outer.step()
    print('%d query mse %.6f rmse %.5f' % (it, total.item(), math.sqrt(total.item())))

print('final', sum(v.detach().abs().sum() for v in meta.values()).item())
