import torch, torch.nn as nn

torch.manual_seed(0)


class M(nn.Module):
    def __init__(s):
        super().__init__()
        s.t = nn.Embedding(100, 8)
        s.p = nn.Embedding(16, 8)
        s.o = nn.Linear(8, 100)

    def forward(s, x):
        return s.o(s.t(x) + s.p(torch.arange(x.size(1))))


m = M()
opt = torch.optim.Adam(m.parameters())
for i in range(5):
    ids = torch.randint(0, 100, (2, 12 if i < 3 else 20))
    loss = nn.functional.cross_entropy(m(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
