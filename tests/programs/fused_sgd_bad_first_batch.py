import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True)
stream = [torch.randn(10, 8) for _ in range(9)]
stream[0][4, 1] = float("nan")       # the recorder was still starting up
for k, x in enumerate(stream, 1):
    loss = (net(x).squeeze(1) - x[:, 0].nan_to_num()).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(k, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
