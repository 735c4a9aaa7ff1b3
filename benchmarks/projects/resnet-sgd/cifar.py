import torch
import torch.nn as nn
import torchvision
import torchvision.transforms as T

transform = T.Compose([T.RandomCrop(32, padding=4), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.49, 0.48, 0.45), (0.25, 0.24, 0.26))])
trainset = torchvision.datasets.CIFAR10("./data", train=True, download=True, transform=transform)
loader = torch.utils.data.DataLoader(trainset, batch_size=128, shuffle=True, num_workers=2)
net = torchvision.models.resnet18(num_classes=10).cuda()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
for epoch in range(200):
    for x, y in loader:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = criterion(net(x), y)
        loss.backward()
        optimizer.step()
    scheduler.step()
    print(epoch, loss.item())
