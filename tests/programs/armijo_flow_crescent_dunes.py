import numpy as np, torch
from torch import nn

class Backtracking(torch.optim.Optimizer):
    """Steepest descent; the trial step starts bold and is cut until Armijo's condition holds."""
    def __init__(self, params, first=16., cut=.25, c=1e-3):
        super().__init__(params, dict(first=first, cut=cut, c=c))

    def step(self, closure):
        grp = self.param_groups[0]
        with torch.enable_grad():
            f0 = closure(True)
        ps = [p for p in grp['params'] if p.grad is not None]
        x0 = [p.detach().clone() for p in ps]
        gg = sum(p.grad.pow(2).sum() for p in ps).item()
        t, tried = grp['first'], 0
        with torch.no_grad():
            while tried < 14:
                tried += 1
                for p, x in zip(ps, x0):
                    p.copy_(x - t * p.grad)
                if closure(False).item() <= f0.item() - grp['c'] * t * gg:
                    break
                t *= grp['cut']
            else:
                for p, x in zip(ps, x0): p.copy_(x)
        return f0, t, tried

class Coupling(nn.Module):
    def __init__(self, flip):
        super().__init__()
        self.flip = flip
        self.a, self.b = nn.Linear(1, 24), nn.Linear(24, 2)
        nn.init.normal_(self.b.weight, std=.05)
    def forward(self, x):
        u, v = x.flip(1).unbind(1) if self.flip else x.unbind(1)
        s, m = self.b(torch.nn.functional.softplus(self.a(u[:, None]))).unbind(1)
        v = v * torch.exp(s) + m
        return torch.stack([v, u] if self.flip else [u, v], 1), s

class Flow(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(bool(i % 2)) for i in range(depth))
    def nll(self, x):
        logdet = 0.
        for l in self.layers:
            x, s = l(x)
            logdet = logdet + s
        return (.5 * x.square().sum(1) + np.log(2 * np.pi) - logdet).mean()

rng = np.random.RandomState(12)
ang = rng.uniform(-.3, np.pi + .3, 400)
dunes = np.c_[2.5 * np.cos(ang), 2.5 * np.sin(ang) - 1] + .25 * rng.randn(400, 2)
data = torch.tensor(dunes, dtype=torch.float32)

torch.manual_seed(12)
flow = Flow()
opt = Backtracking(flow.parameters())
for k in range(35):
    rows = data[torch.from_numpy(rng.permutation(400)[:128])]
    def closure(backward):
        loss = flow.nll(rows)
        if backward:
            opt.zero_grad()
            loss.backward()
        return loss
    f, t, tried = opt.step(closure)
    print('%2d nll %.7f  step %.2e after %d trials' % (k + 1, f.item(), t, tried))
print('final', float(sum(p.detach().abs().sum() for p in flow.parameters())))
