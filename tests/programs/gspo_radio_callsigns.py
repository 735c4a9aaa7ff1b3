# group sequence policy optimisation (ratio per sequence, length normalised) on radio call signs
import torch as T, torch.nn as nn, torch.nn.functional as F
T.manual_seed(1)
A = 'KWNQRZ0123456789'
E = len(A); B0 = E + 1; V = E + 2     # E ends the sign, B0 starts it
L, P, G = 8, 4, 8                     # longest sign, prompts (regions), group
eps_lo, eps_hi = 3e-2, 4e-2

class Pi(nn.Module):
    def __init__(s, h=32):
        super().__init__()
        s.r = nn.Embedding(P, h); s.e = nn.Embedding(V, h)
        s.g = nn.GRU(h, h, batch_first=True); s.o = nn.Linear(h, V - 1)
        with T.no_grad(): s.o.bias[E] = -2.5
    def forward(s, r, x):
        y, _ = s.g(s.e(x), s.r(r)[None])
        return F.log_softmax(s.o(y), -1)

def reward(w, r):
    t = ''.join(A[c] for c in w)
    v = 1. * (t[:1] in ('KW', 'NQ', 'RZ', 'KR')[r]) + .5 * any(c.isdigit() for c in t)
    return v - .25 * len(t)

@T.no_grad()
def rollout(pi):
    r = T.arange(P).repeat_interleave(G)
    x = T.full((P * G, 1), B0)
    for _ in range(L):
        p = pi(r, x)[:, -1].exp()
        x = T.cat([x, (p / T.empty_like(p).exponential_()).argmax(-1, keepdim=True)], 1)
    a = x[:, 1:]
    m = ((a == E).cumsum(1) == 0).float()          # letters before the end
    ln = m.sum(1).long().tolist()
    R = T.tensor([reward(a[i, :ln[i]].tolist(), int(r[i])) for i in range(P * G)])
    q = R.view(P, G)
    adv = ((q - q.mean(1, keepdim=True)) / (q.std(1, keepdim=True) + 1e-4)).view(-1)
    old = pi(r, x[:, :-1]).gather(-1, a[..., None])[..., 0]
    return r, x, a, m, adv, old, R.mean().item()

pi = Pi()
op = T.optim.Adam(pi.parameters(), lr=4e-3)
for it in range(40):
    if it % 2 == 0:
        r, x, a, m, adv, old, Rm = rollout(pi)
    lp = pi(r, x[:, :-1]).gather(-1, a[..., None])[..., 0]
    s = ((lp - old) * m).sum(1) / m.sum(1)
    w = s.exp()
    J = T.min(w * adv, w.clamp(1 - eps_lo, 1 + eps_hi) * adv)
    loss = -J.mean()
    op.zero_grad(); loss.backward()
    nn.utils.clip_grad_norm_(pi.parameters(), .5)
    op.step()
    print(it + 1, f'R {Rm:+.3f} loss {loss.item():+.5f}', flush=True)
print('final', f'{sum(p.detach().norm()**2 for p in pi.parameters())**.5:.4f}')
