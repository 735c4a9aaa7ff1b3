"""Road-sign classifier with OneCycle and gradient accumulation."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(6)
EPOCHS, BATCH, ACCUMULATE = 3, 16, 4

labels = torch.randint(0, 6, (300,))
signs = torch.randn(6, 3, 16, 16)[labels] + 0.6 * torch.randn(300, 3, 16, 16)
loader = DataLoader(TensorDataset(signs, labels), batch_size=BATCH, shuffle=True)

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.SiLU(),
    nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.SiLU(),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 6))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(
    optimizer, max_lr=0.1, epochs=EPOCHS, steps_per_epoch=len(loader) // ACCUMULATE)

for epoch in range(EPOCHS):
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y, label_smoothing=0.05)
        (loss / ACCUMULATE).backward()
        if (i + 1) % ACCUMULATE == 0 or i + 1 == len(loader):
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            print(f"epoch {epoch} batch {i} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.5f}")
print("weights", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
