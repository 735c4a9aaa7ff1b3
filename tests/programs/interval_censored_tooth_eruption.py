import csv, io, math, random
import torch
from torch.utils.data import Dataset, DataLoader

# Signal-Tandmobiel-like: children are seen once a year, a premolar emerges between two visits (left, right];
# not yet emerged at the last visit -> right = inf, as in R's Surv(type = "interval2"); there at the first -> left = 0
def simulate(n=480, seed=4):
    rng = random.Random(seed)
    out = io.StringIO(); w = csv.writer(out)
    w.writerow(['girl', 'fluoride', 'caries', 'left', 'right'])
    for _ in range(n):
        girl, fl, car = rng.random() < .5, rng.random(), rng.random() < .3
        t = 10.2 * pow(-math.log(rng.random()), 1 / 9.) * (0.95 if girl else 1.) * (1 + .05 * fl) * (.93 if car else 1.)
        visits = [7 + k + rng.uniform(-.2, .2) for k in range(6) if rng.random() > .1]
        left, right = 0., float('inf')
        for v in visits:
            if v < t: left = v
            elif right == float('inf'): right = v
        w.writerow([int(girl), '%.3f' % fl, int(car), '%.3f' % left, '%.3f' % right])
    return out.getvalue()

class Teeth(Dataset):
    def __init__(self, text):
        self.rows = [[float(c) for c in r] for r in list(csv.reader(io.StringIO(text)))[1:]]
    def __len__(self): return len(self.rows)
    def __getitem__(self, i):
        r = torch.tensor(self.rows[i])
        return r[:3], r[3], r[4]

class WeibullAFT(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(3, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
        self.log_shape = torch.nn.Parameter(torch.tensor(1.5))
        self.mu0 = torch.nn.Parameter(torch.tensor(2.2))
    def cumhaz(self, x, t):
        return torch.exp(self.log_shape.exp() * (t.log() - self.mu0 - self.net(x).squeeze(-1)))

def nll(m, x, left, right):
    open_end = torch.isinf(right)
    from_birth = left == 0
    hl = m.cumhaz(x, torch.where(from_birth, torch.ones_like(left), left))
    hl = torch.where(from_birth, torch.zeros_like(hl), hl)
    hr = m.cumhaz(x, torch.where(open_end, left + 1., right))
    gap = torch.where(open_end, torch.ones_like(hr), hr - hl).clamp(min=1e-6)
    inside = torch.log(-torch.expm1(-gap))
    return (hl - torch.where(open_end, torch.zeros_like(inside), inside)).mean()

torch.manual_seed(4)
data = Teeth(simulate())
loader = DataLoader(data, batch_size=40, shuffle=True, generator=torch.Generator().manual_seed(1))
model = WeibullAFT()
optim = torch.optim.RMSprop(model.parameters(), lr=3e-3)
step = 0
for epoch in range(6):
    for x, left, right in loader:
        step += 1
        optim.zero_grad()
        l = nll(model, x, left, right)
        l.backward()
        optim.step()
        with torch.no_grad():
            # survival at the right end: exactly 0 at infinity
            s_right = torch.exp(-model.cumhaz(x, right))
            width = (right - left).mean()
        print(f'epoch {epoch} step {step} nll {l.item():.6f} open {int(torch.isinf(right).sum())} '
              f'S(right) {s_right.mean().item():.5f} width {width.item():.3f}')
print('final', sum(p.abs().sum().item() for p in model.parameters()))
