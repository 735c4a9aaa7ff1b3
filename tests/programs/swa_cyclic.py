import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn

torch.manual_seed(0)
torch.set_num_threads(1)
X = torch.randn(64, 10)
Y = X[:, :3].argmax(1)
loader = [(X[i:i + 16], Y[i:i + 16]) for i in range(0, 64, 16)]
model = torch.nn.Sequential(torch.nn.Linear(10, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Linear(24, 3))
swa_model = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
swa_start, swa_scheduler = 3, SWALR(optimizer, swa_lr=0.05, anneal_epochs=2)
for epoch in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print(epoch, loss.item())
    if epoch >= swa_start:
        swa_model.update_parameters(model)
        swa_scheduler.step()
    else:
        scheduler.step()
update_bn([x for x, _ in loader], swa_model)
with torch.no_grad():
    print("swa", torch.nn.functional.cross_entropy(swa_model(X), Y).item(), int(swa_model.n_averaged))
print("weights", sum(p.double().sum().item() for p in swa_model.parameters()))
