import torch
import torch.nn as nn
from torch.amp import GradScaler, autocast

torch.manual_seed(0)
torch.set_num_threads(1)

model = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 16, 10))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scaler = GradScaler("cpu", init_scale=2.0 ** 26, growth_interval=50)
images, labels = torch.rand(160, 1, 8, 8), torch.randint(0, 10, (160,))
for epoch in range(2):
    for start in range(0, 160, 10):
        x, y = images[start:start + 10], labels[start:start + 10]
        optimizer.zero_grad(set_to_none=True)
        with autocast("cpu", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        print(epoch, start, loss.item(), scaler.get_scale())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
