import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Backbone(nn.Module):
    """stands for a pre-trained feature extractor, kept in eval mode"""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))

    @torch.no_grad()
    def forward(self, x):
        return self.layers(x).mean((2, 3))


backbone = Backbone().eval()
for p in backbone.parameters():
    p.requires_grad = False
head = nn.Linear(8, 3)
model = nn.Sequential(backbone, head)
trainable = filter(lambda p: p.requires_grad, model.parameters())
optimizer = torch.optim.SGD(trainable, lr=0.5, momentum=0.9)
before = sum(p.double().sum().item() for p in backbone.parameters())
for step in range(12):
    images = torch.rand(10, 3, 9, 9)
    labels = images.mean((2, 3)).argmax(1)
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"[{step}] loss: {loss.item()!r}")
print("backbone moved", sum(p.double().sum().item() for p in backbone.parameters()) - before)
print("weights", sum(p.double().sum().item() for p in head.parameters()))
