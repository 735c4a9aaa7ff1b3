import torch
import torch.nn as nn

torch.manual_seed(15)
torch.set_num_threads(1)


def cosine(a, b):
    return (a * b).sum(-1) / (a.norm(dim=-1) * b.norm(dim=-1))


class TwoTower(nn.Module):
    def __init__(self, items=80, dim=16):
        super().__init__()
        self.query = nn.EmbeddingBag(items, dim, mode="sum", padding_idx=0)
        self.doc = nn.EmbeddingBag(items, dim, mode="sum", padding_idx=0)

    def forward(self, q, d):
        return cosine(self.query(q), self.doc(d))


net = TwoTower()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
for batch in range(1, 13):
    q, d = torch.randint(1, 80, (6, 4)), torch.randint(1, 80, (6, 4))
    q[:, 3] = 0
    if batch >= 8:
        q[batch % 6] = 0       # empty queries came in with the new log format
    target = torch.where(torch.arange(6) % 2 == 0, 1.0, -1.0)
    loss = (cosine_scores := net(q, d)).sub(target).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(batch, loss.item(), cosine_scores.max().item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
