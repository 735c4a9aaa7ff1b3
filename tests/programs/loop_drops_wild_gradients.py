import torch

torch.manual_seed(5)
torch.set_num_threads(1)
net = torch.nn.Linear(10, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
limit, dropped, kept = 12.0, 0, 0
for step in range(25):
    x = torch.randn(8, 10)
    noise = torch.randn(8, 1) * (30.0 if step % 6 == 5 else 0.3)
    loss = torch.nn.functional.mse_loss(net(x), x.mean(1, keepdim=True) + noise)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(net.parameters(), max_norm=1e9)
    if norm > limit:
        dropped += 1
        opt.zero_grad()        # gradient computed and thrown away, no step
        continue
    opt.step()
    opt.zero_grad()
    kept += 1
    print(step, loss.item(), norm.item())
print("kept", kept, "dropped", dropped, sum(p.double().sum().item() for p in net.parameters()))
