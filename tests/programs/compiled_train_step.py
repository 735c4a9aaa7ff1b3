import torch
import torch.nn.functional as F

torch.manual_seed(2)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(6, 24), torch.nn.Tanh(), torch.nn.Linear(24, 3))
opt = torch.optim.Adam(net.parameters(), lr=1e-2, capturable=False)


@torch.compile(backend="eager")
def loss_and_logits(x, y):
    logits = net(x)
    return F.cross_entropy(logits, y), logits


@torch.compile(backend="eager", fullgraph=False)
def update():
    opt.step()


for i in range(10):
    x = torch.randn(20, 6)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0).long()
    opt.zero_grad(set_to_none=False)
    loss, logits = loss_and_logits(x, y)
    loss.backward()
    update()
    print(i, loss.item(), (logits.argmax(1) == y).float().mean().item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
