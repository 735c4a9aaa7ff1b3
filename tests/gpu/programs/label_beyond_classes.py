import torch
from torch import nn

torch.manual_seed(0)
dev = torch.device("cuda")
classes = 5
model = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, classes)).to(dev)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
x = torch.randn(240, 12)
y = (x[:, :classes].argmax(1)).long()
y[131] = 5
for epoch in range(2):
    for k, start in enumerate(range(0, 240, 20)):
        xb, yb = x[start : start + 20].to(dev), y[start : start + 20].to(dev)
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        print(epoch, k, round(loss.item(), 5))
print("checksum", sum(float(p.detach().abs().sum()) for p in model.parameters()))
