import torch, torch.nn as nn
from torch.optim import Optimizer


class COCOB(Optimizer):
    """COntinuous COin Betting (Orabona & Tommasi 2017, algorithm 2): no learning rate to tune."""

    def __init__(self, params, alpha=100.0):
        super().__init__(params, dict(alpha=alpha))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            alpha = group['alpha']
            for p in group['params']:
                if p.grad is None: continue
                s = self.state[p]
                if not s:
                    s['w1'] = p.clone()
                    for k in ('L', 'G', 'reward', 'theta'): s[k] = torch.zeros_like(p)
                c = -p.grad
                s['L'] = torch.maximum(s['L'], c.abs())
                s['G'] += c.abs()
                s['reward'] = torch.clamp(s['reward'] + (p - s['w1']) * c, min=0)
                s['theta'] += c
                bound = torch.maximum(s['G'] + s['L'], alpha * s['L'])
                bet = s['theta'] / (s['L'] * bound)
                p.copy_(s['w1'] + bet * (s['L'] + s['reward']))


class Boardings(nn.Module):
    """ boardings per departure from the time of day and the weather, later also from the stop """
    def __init__(self, nstops=100):       # numbers 90 to 99 are for stops to come
        super().__init__()
        self.h = nn.Linear(4, 16)
        self.o = nn.Linear(16, 1)
        self.stop = nn.Embedding(nstops, 1)
        nn.init.zeros_(self.stop.weight)
        self.use_stop = False

    def forward(self, x, stop):
        y = self.o(torch.tanh(self.h(x))).squeeze(-1)
        return y + self.stop(stop).squeeze(-1) if self.use_stop else y


g = torch.Generator(); g.manual_seed(90)
torch.manual_seed(90)
popularity = torch.randn(90, generator=g) * .7
def departures(n=64):
    hour = torch.rand(n, generator=g) * 24
    rain = torch.rand(n, generator=g)
    x = torch.stack([torch.sin(hour / 24 * 6.2832), torch.cos(hour / 24 * 6.2832), rain, torch.ones(n)], 1)
    stop = torch.randint(0, 90, (n,), generator=g)
    y = 1.5 - x[:, 1] + .6 * torch.sin(2 * hour / 24 * 6.2832) - .5 * rain + popularity[stop]
    return x, stop, y + .2 * torch.randn(n, generator=g)


model = Boardings()
opt = COCOB([*model.h.parameters(), *model.o.parameters()])
for step in range(1, 51):
    if step == 22:            # the trend has settled: now what is particular to the stop
        model.use_stop = True
        opt.add_param_group({'params': list(model.stop.parameters())})
    x, stop, y = departures()
    loss = nn.functional.mse_loss(model(x, stop), y)
    opt.zero_grad(); loss.backward(); opt.step()
    print('step', step, 'mse', '%.7f' % loss.item())
print('final', sum(p.abs().sum().item() for p in model.parameters()))
