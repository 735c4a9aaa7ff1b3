"""SimCLR on vectors: two noisy views, the diagonal is masked with -inf."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(2024)

backbone = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(inplace=True), nn.Linear(64, 32))
projector = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 16))
simclr = nn.Sequential(backbone, projector)


def nt_xent(z1, z2, tau=0.2):
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    sim = z @ z.T / tau
    n = len(z1)
    sim.fill_diagonal_(float("-inf"))
    target = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, target)


sgd = torch.optim.SGD(simclr.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4, nesterov=True)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=20)
x = torch.randn(128, 20)
for epoch in range(5):
    for batch in torch.randperm(128).split(32):
        v1 = x[batch] + 0.1 * torch.randn(32, 20)
        v2 = x[batch] * (torch.rand(32, 20) > 0.2)
        loss = nt_xent(simclr(v1), simclr(v2))
        sgd.zero_grad()
        loss.backward()
        sgd.step()
        sched.step()
        print(f"{epoch}: {loss.item()} lr={sgd.param_groups[0]['lr']:.5f}")
print("checksum", sum(p.detach().double().pow(2).sum().item() for p in simclr.parameters()))
