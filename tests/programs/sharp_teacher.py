import torch, torch.nn as nn, torch.nn.functional as F

torch.manual_seed(12)
student = nn.Linear(12, 6)
opt = torch.optim.Adam(student.parameters(), lr=1e-3)
teacher = nn.Linear(12, 6)
for i in range(8):
    x = torch.randn(10, 12)
    with torch.no_grad():
        t = teacher(x)
        if i >= 3:
            t = t * 80
        q = t.softmax(-1)
    logp = F.log_softmax(student(x), -1)
    loss = (q * (q.log() - logp)).sum(-1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
