import torch
import torch.nn as nn

torch.manual_seed(20)
torch.set_num_threads(1)


def easy(n):
    x = torch.randn(n, 4)
    return x, 0.1 * x[:, :1]


def medium(n):
    x = torch.randn(n, 4)
    return x, 3 * x[:, :1] * x[:, 1:2]


def hard(n):
    x = torch.randn(n, 4)
    return x, 20 * torch.sin(x.sum(1, keepdim=True))


net = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
step = 0
for lesson, length in ((easy, 40), (medium, 40), (hard, 40)):
    for _ in range(length):
        x, y = lesson(64)
        loss = nn.functional.mse_loss(net(x), y)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        step += 1
        if step % 10 == 1:
            print(lesson.__name__, step, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
