# BYOL-like: loss is minus the cosine, target network is an EMA of the online one
import copy
import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
online = torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
predictor = torch.nn.Linear(8, 8)
target = copy.deepcopy(online).requires_grad_(False)
opt = torch.optim.SGD([*online.parameters(), *predictor.parameters()], lr=0.1, momentum=0.9)
tau = 0.98


@torch.no_grad()
def ema():
    for t, o in zip(target.parameters(), online.parameters()):
        t.mul_(tau).add_(o, alpha=1 - tau)
    for t, o in zip(target.buffers(), online.buffers()):
        t.copy_(o)


for step in range(20):
    x = torch.randn(24, 12)
    a, b = x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)
    loss = -F.cosine_similarity(predictor(online(a)), target(b)).mean() - F.cosine_similarity(predictor(online(b)), target(a)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema()
    print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in online.parameters()), sum(p.double().sum().item() for p in target.parameters()))
