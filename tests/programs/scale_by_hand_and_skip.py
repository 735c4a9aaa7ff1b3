# a loss scaler of one's own: halve on overflow, double after ten good steps
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(12, 48), torch.nn.ReLU(), torch.nn.Linear(48, 3)).half()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
scale, good = 2.0 ** 22, 0
for i in range(24):
    x = torch.randn(16, 12)
    y = x[:, :3].argmax(1)
    loss = torch.nn.functional.cross_entropy(net(x.half()).float(), y)
    opt.zero_grad()
    (loss * scale).backward()
    grads = [p.grad for p in net.parameters()]
    if not all(torch.isfinite(g).all() for g in grads):
        scale, good = scale / 2, 0
        print(i, "overflow, scale now", scale)
        continue
    for g in grads:
        g.div_(scale)
    opt.step()
    good += 1
    if good == 10:
        scale, good = scale * 2, 0
    print(i, loss.item(), scale)
print("weights", sum(p.double().sum().item() for p in net.parameters()))
