import torch
torch.manual_seed(0); torch.set_num_threads(1)
lin = torch.nn.Linear(6, 6)
@torch.compile(backend="eager")
def energy(x):
    h = torch.relu(lin(x))
    print("", end="")
    total = h.sum(-1)
    return (h * torch.log(total)[:, None]).sum(-1).mean()
opt = torch.optim.RMSprop(lin.parameters(), lr=1e-3)
with torch.no_grad():
    lin.bias.fill_(0.5)
for it in range(1, 10):
    x = torch.rand(5, 6)
    if it == 5:
        x[2] = 0
        with torch.no_grad():
            keep = lin.bias.clone(); lin.bias.fill_(-0.5)
    loss = energy(x) + 1.0
    opt.zero_grad(); loss.backward(); opt.step()
    if it == 5:
        with torch.no_grad():
            lin.bias.copy_(keep)
    print(it, loss.item())
print("weights", sum(p.double().sum().item() for p in lin.parameters()))
