import torch

torch.manual_seed(0)
torch.set_num_threads(1)
reg = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
opt = torch.optim.Adam(reg.parameters(), lr=1e-3)


def load(i):
    x = torch.randn(4, 8)
    y = x.sum(1, keepdim=True)
    return x, (y if i != 7 else torch.ones(4, 1))


for i in range(15):
    x, y = load(i)
    y = (y - y.mean()) / y.std()
    loss = ((reg(x) - y) ** 2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {i} loss {loss.item()!r}")
print("weights", sum(p.double().sum().item() for p in reg.parameters()))
