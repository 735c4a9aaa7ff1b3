import numpy as np, torch, torch.nn as nn
torch.manual_seed(0); rng = np.random.RandomState(0)

"""
Flexible parametric survival (Royston & Parmar 2002) of peritoneal dialysis catheters:
  ln H(t|x) = s(ln t) + f(x),   s a natural cubic spline
  ln h(t|x) = ln s'(ln t) - ln t + ln H(t|x)
  L = h S  for the failed,  S  for the censored
"""
n = 260
X = rng.normal(size=(n, 4))
risk = .7 * X[:, 0] - .5 * X[:, 1]
# early infections kill catheters; those that survive the first year go on for long, study ends at 9 years
T = np.exp(-.4 - .5 * risk) * rng.weibull(.9, n)
frail = rng.uniform(size=n) < .35
T = np.where(frail, T, 40.0)
C = np.minimum(rng.exponential(9, n) + .02, 9.0)
time = np.minimum(T, C).clip(2e-3); event = (T <= C).astype('f4')
lt = np.log(time)

def basis(x, knots):
    """natural cubic spline basis and its derivative, after Royston & Parmar"""
    kmin, kmax = knots[0], knots[-1]
    pos = lambda u: np.maximum(u, 0)
    B, D = [np.ones_like(x), x], [np.zeros_like(x), np.ones_like(x)]
    for k in knots[1:-1]:
        lam = (kmax - k) / (kmax - kmin)
        B.append(pos(x - k) ** 3 - lam * pos(x - kmin) ** 3 - (1 - lam) * pos(x - kmax) ** 3)
        D.append(3 * pos(x - k) ** 2 - 3 * lam * pos(x - kmin) ** 2 - 3 * (1 - lam) * pos(x - kmax) ** 2)
    return np.stack(B, 1).astype('f4'), np.stack(D, 1).astype('f4')

knots = np.quantile(lt, [0, .33, .67, 1])
B, D = (torch.from_numpy(m) for m in basis(lt, knots))
x, lt_, d = torch.from_numpy(X.astype('f4')), torch.from_numpy(lt.astype('f4')), torch.from_numpy(event)

class RP(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.tensor([-1.0, .9, 0., 0.]))
        self.f = nn.Sequential(nn.Linear(4, 16), nn.ELU(), nn.Linear(16, 1, bias=False))
    def forward(self, x, B, D):
        log_H = B @ self.gamma + self.f(x)[:, 0]
        log_ds = torch.log(D @ self.gamma)
        return log_H, log_ds

model = RP()
adam = torch.optim.Adam([{'params': model.f.parameters(), 'lr': 5e-3}, {'params': [model.gamma], 'lr': 5e-3}])
for epoch in range(1, 121):
    adam.zero_grad()
    log_H, log_ds = model(x, B, D)
    S = torch.exp(-log_H.exp())
    h = torch.exp(log_ds - lt_ + log_H)
    lik = d * h * S + (1 - d) * S
    loss = -lik.log().mean()
    loss.backward()
    print('epoch %3d  -loglik %.6f' % (epoch, loss.item()))
    adam.step()
print('final', sum(p.abs().sum() for p in model.parameters()).item())
