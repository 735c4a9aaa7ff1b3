import torch, torch.nn as nn
torch.manual_seed(3)
class MoE(nn.Module):
    def __init__(s, d=16, n=4):
        super().__init__(); s.router = nn.Linear(d, n, bias=False); s.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 32), nn.GELU(), nn.Linear(32, d)) for _ in range(n))
    def forward(s, x):
        flat = x.reshape(-1, x.shape[-1]); p = s.router(flat).softmax(-1); w, i = p.max(-1)
        out = torch.zeros_like(flat); self_load = []
        for e, f in enumerate(s.experts):
            rows = (i == e).nonzero().squeeze(1)
            out = out.index_add(0, rows, f(flat[rows]) * w[rows, None])
            self_load.append(w[rows].mean())
        s.balance = torch.stack(self_load)
        return out.view_as(x)
class Net(nn.Module):
    def __init__(s):
        super().__init__(); s.emb = nn.Embedding(50, 16); s.moe = MoE(); s.out = nn.Linear(16, 50)
    def forward(s, ids):
        h = s.emb(ids); return s.out(h + s.moe(h))
net = Net(); opt = torch.optim.AdamW(net.parameters(), 1e-2)
for step in range(1, 21):
    n = 24 if step != 9 else 1
    ids = torch.randint(0, 50, (n, 9)) if step != 9 else torch.full((1, 3), 7)
    logits = net(ids[:, :-1])
    ce = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss = ce + 0.01 * net.moe.balance.var()
    opt.zero_grad(); loss.backward(); opt.step()
    print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
