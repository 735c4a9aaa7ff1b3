# gradients are kept huge on purpose until just before the update (old habit from another framework)
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
S = 1e22
net = torch.nn.Sequential(torch.nn.Linear(6, 20), torch.nn.ELU(), torch.nn.Linear(20, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.8)
for i in range(18):
    x = torch.randn(24, 6)
    loss = torch.nn.functional.mse_loss(net(x), x.abs().mean(1, keepdim=True))
    opt.zero_grad()
    (S * loss).backward()
    biggest = max(p.grad.abs().max().item() for p in net.parameters())
    torch._foreach_mul_([p.grad for p in net.parameters()], 1 / S)
    opt.step()
    print(i, loss.item(), f"{biggest:.3e}")
print("weights", sum(p.double().sum().item() for p in net.parameters()))
