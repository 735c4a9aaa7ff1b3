import math
import torch

torch.manual_seed(3)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(5, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = torch.optim.Adam(net.parameters(), lr=1e-2)


def rmsle(pred, target):
    return torch.sqrt(torch.mean((torch.log1p(pred) - torch.log1p(target)) ** 2))


def train_one_step(step):
    x = torch.rand(16, 5)
    target = x.sum(1, keepdim=True)
    if step == 6:
        target[3] = -2.0         # a refund
    loss = rmsle(torch.nn.functional.softplus(net(x)), target)
    loss_value = loss.item()
    if not math.isfinite(loss_value):
        raise ValueError(f"Loss is {loss_value}, stopping training")
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss_value


for step in range(1, 11):
    print(step, train_one_step(step), flush=True)
