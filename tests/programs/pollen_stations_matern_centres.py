# birch pollen, one morning: log counts at 60 traps, interpolated with a few kernel centres
# (Matern 3/2, all of it fitted by gradient: centres, lengths, heights)
import torch

torch.manual_seed(2024)
N, M = 60, 9
traps = torch.rand(N, 2) * 10
front = torch.sigmoid(3 * (traps[:, 0] - 6)) * 2.5
city = -1.5 * torch.exp(-((traps - torch.tensor([3.0, 7.0])) ** 2).sum(1))
log_counts = front + city + 0.05 * torch.randn(N)

centres = (torch.rand(M, 2) * 10).requires_grad_()
log_length = torch.zeros(2).add(0.7).requires_grad_()
heights = torch.zeros(M).requires_grad_()
level = log_counts.mean().clone().requires_grad_()
params = [centres, log_length, heights, level]
opt = torch.optim.Adam(params, lr=0.06)


def matern(x, z):
    gap = (x[:, None, :] - z[None, :, :]) / log_length.exp()
    dist = gap.square().sum(-1).sqrt()
    a = 3 ** 0.5 * dist
    return (1 + a) * torch.exp(-a)


def relocate(residual):
    """give the centre that does least to the trap that is explained worst"""
    with torch.no_grad():
        idle = heights.abs().argmin()
        worst = residual.abs().argmax()
        centres[idle] = traps[worst]
        heights[idle] = residual[worst]
    return int(idle), int(worst)


for step in range(1, 36):
    K = matern(traps, centres)
    residual = log_counts - (level + K @ heights)
    loss = residual.square().mean() + 1e-3 * heights.square().sum()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step %2d  mean squared residual %.5f" % (step, loss.item()))
    if step == 20:
        who, where = relocate(residual.detach())
        print("   centre %d now stands for trap %d" % (who, where))

print("squares of everything fitted:", round(sum((p ** 2).sum().item() for p in params), 4))
