import torch, torch.nn as nn
torch.manual_seed(0)
class GNN(nn.Module):
    def __init__(s): super().__init__(); s.l1 = nn.Linear(5, 16); s.l2 = nn.Linear(16, 16); s.out = nn.Linear(16, 1)
    def forward(s, x, edge, batch, n):
        src, dst = edge; h = s.l1(x).relu(); m = torch.zeros_like(h).index_add_(0, dst, s.l2(h)[src]); h = h + m
        total = torch.zeros(n, 16).index_add_(0, batch, h); count = torch.bincount(batch, minlength=n).float()
        return s.out(total / count[:, None]).squeeze(1)
m = GNN(); opt = torch.optim.Adam(m.parameters(), 3e-3)
for step in range(1, 13):
    n, nodes = 6, 40; batch = torch.randint(0, n, (nodes,)).sort()[0]
    if step == 9: batch[batch == 4] = 3      # an empty molecule
    edge = torch.randint(0, nodes, (2, 80)); y = torch.randn(n)
    loss = nn.functional.mse_loss(m(torch.randn(nodes, 5), edge, batch, n), y)
    opt.zero_grad(); loss.backward(); opt.step(); print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in m.parameters()))
