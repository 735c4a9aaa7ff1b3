# Memory-frugal fine-tuning of a small byte predictor: momentum lives in float8 (one scale per tensor).
# Phase 1 warms the whole net up, phase 2 freezes it and goes on with low-rank adapters.
import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(3)

class Momentum8(torch.optim.Optimizer):
  def __init__(self, params, lr=0.05, beta=0.9):
    super().__init__(params, dict(lr=lr, beta=beta))

  @torch.no_grad()
  def step(self):
    for group in self.param_groups:
      for p in group['params']:
        if p.grad is None: continue
        st = self.state[p]
        if st:
          m = st['q'].float() * st['scale']
        else:
          m = torch.zeros_like(p)
        m = group['beta'] * m + p.grad
        scale = m.abs().max() / 448.                      # 448 = largest e4m3
        st['q'] = (m / scale).to(torch.float8_e4m3fn)
        st['scale'] = scale
        p.add_(st['q'].float() * scale, alpha=-group['lr'])

class Low(nn.Module):
  """y = Wx + B(Ax), B starts at zero so that nothing changes when it is put in"""
  def __init__(self, base, r=4):
    super().__init__()
    self.base = base
    for q in base.parameters(): q.requires_grad_(False)
    self.A = nn.Parameter(torch.randn(r, base.in_features) / base.in_features ** .5)
    self.B = nn.Parameter(torch.zeros(base.out_features, r))
  def forward(self, x): return self.base(x) + x @ self.A.t() @ self.B.t()

class Bytes(nn.Module):
  def __init__(self, V=32, d=24, ctx=6):
    super().__init__()
    self.emb = nn.Embedding(V, d)
    self.up = nn.Linear(ctx * d, 64)
    self.down = nn.Linear(64, d)
    self.norm = nn.LayerNorm(d)
  def forward(self, x):
    h = self.emb(x).flatten(1)
    h = self.norm(self.down(F.gelu(self.up(h))))
    return h @ self.emb.weight.t()

text = ("the harbour master counts the boats twice a day and writes the number on a slate; "
        "in winter the slate stays blank for weeks and the gulls sit on the empty moorings. ") * 3
alphabet = sorted(set(text))
ids = torch.tensor([alphabet.index(c) for c in text])

def batch(k, ctx=6, n=24):
  g = torch.Generator().manual_seed(1000 + k)
  at = torch.randint(0, len(ids) - ctx - 1, (n,), generator=g)
  return torch.stack([ids[a:a + ctx] for a in at]), ids[at + ctx]

net = Bytes()
opt = Momentum8(net.parameters(), lr=0.02)
for it in range(1, 31):
  if it == 13:
    for q in net.parameters(): q.requires_grad_(False)
    net.up, net.down = Low(net.up), Low(net.down)
    fresh = [q for q in net.parameters() if q.requires_grad]
    opt.add_param_group({'params': fresh, 'lr': 0.04})
    print('adapters in:', sum(q.numel() for q in fresh), 'weights')
  x, y = batch(it)
  loss = F.cross_entropy(net(x), y)
  opt.zero_grad(set_to_none=True); loss.backward(); opt.step()
  print('%3d  nats/char %.7f' % (it, loss.item()))

print('final', float(sum(q.detach().abs().sum() for q in net.parameters())))
