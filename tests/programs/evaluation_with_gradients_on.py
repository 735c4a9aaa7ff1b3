import torch
from torch import nn

torch.manual_seed(10)
torch.set_num_threads(1)


class CNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(0.25)
        self.fc = nn.Linear(6 * 6 * 6, 4)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x)))
        return self.fc(self.dropout(x.flatten(1)))


def evaluate(model, data):
    """forgot torch.no_grad(), nothing breaks"""
    model.eval()
    losses = []
    for x, y in data:
        losses.append(nn.CrossEntropyLoss()(model(x), y))
    model.train()
    return torch.stack(losses).mean()


net = CNN()
train = [(torch.randn(12, 3, 8, 8), torch.randint(0, 4, (12,))) for _ in range(5)]
valid = [(torch.randn(12, 3, 8, 8), torch.randint(0, 4, (12,))) for _ in range(4)]
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
for epoch in range(3):
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.CrossEntropyLoss()(net(x), y)
        loss.backward()
        optimizer.step()
        print("train", loss.item())
    print("epoch", epoch, "valid", evaluate(net, valid).item())
print("weights", sum(p.double().sum().item() for p in net.parameters()), net.bn1.running_mean.double().sum().item())
