import torch, torch.nn as nn

torch.manual_seed(13)
model = nn.Sequential(nn.Flatten(), nn.Linear(16, 4))
opt = torch.optim.SGD(model.parameters(), 0.1)
for i in range(6):
    x, y = torch.randn(5, 4, 4), torch.randint(0, 4, (5,))
    if i == 3:
        y[2] = -1
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
