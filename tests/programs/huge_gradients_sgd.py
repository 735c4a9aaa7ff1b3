import torch
torch.manual_seed(4)
torch.set_num_threads(1)
# physical units: the target is in joules, the rate makes up for it
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=2e-23)
for i in range(12):
    x = torch.rand(10, 3)
    energy = (x * torch.tensor([1.0, 2.0, 3.0])).sum(1, keepdim=True)
    loss = ((model(x) - energy) * 1e11).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    total = torch.linalg.vector_norm(torch.stack([p.grad.double().norm() for p in model.parameters()]))
    optimizer.step()
    print(i + 1, loss.item(), total.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
