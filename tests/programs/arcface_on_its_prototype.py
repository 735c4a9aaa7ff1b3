import torch, torch.nn as nn

torch.manual_seed(14)


class ArcFace(nn.Module):
    def __init__(s, d, c, m=0.3, s_=16.0):
        super().__init__()
        s.w = nn.Parameter(torch.randn(c, d))
        s.m = m
        s.s = s_

    def forward(s, x, y):
        c = nn.functional.normalize(x) @ nn.functional.normalize(s.w).T
        th = torch.acos(c)
        th = torch.where(nn.functional.one_hot(y, c.size(1)).bool(), th + s.m, th)
        return nn.functional.cross_entropy(torch.cos(th) * s.s, y)


body, head = nn.Linear(10, 6), ArcFace(6, 4)
opt = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.1, momentum=0.9)
for i in range(12):
    x, y = torch.randn(8, 10), torch.randint(0, 4, (8,))
    f = body(x)
    if i == 5:
        f = torch.cat([f[:7], head.w[2:3].detach() * 7.0])
    loss = head(f, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
