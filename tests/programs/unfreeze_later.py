import torch
import torch.nn as nn
from torch.optim.lr_scheduler import StepLR

torch.manual_seed(12)
torch.set_num_threads(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv1d(1, 4, 5), nn.BatchNorm1d(4), nn.ReLU(), nn.AdaptiveAvgPool1d(6))
        self.classifier = nn.Linear(24, 3)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


net = Net()
for p in net.features.parameters():
    p.requires_grad_(False)
optimizer = torch.optim.SGD(net.classifier.parameters(), lr=0.1, momentum=0.9)
lr_scheduler = StepLR(optimizer, step_size=6, gamma=0.5)
phase = torch.arange(3).repeat(4)
for step in range(18):
    if step == 6:
        print("unfreezing features")
        for p in net.features.parameters():
            p.requires_grad_(True)
        optimizer.add_param_group({"params": net.features.parameters(), "lr": 0.01, "initial_lr": 0.01})
        lr_scheduler.base_lrs.append(0.01)
    signal = torch.sin(torch.linspace(0, 6, 40)[None] * (1 + phase[:, None]))[:, None] + 0.1 * torch.randn(12, 1, 40)
    loss = nn.functional.cross_entropy(net(signal), phase)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    lr_scheduler.step()
    print(step, loss.item(), [g["lr"] for g in optimizer.param_groups])
print("checksum", sum(p.double().sum().item() for p in net.parameters()))
