import torch, torch.nn as nn
from torch.optim.swa_utils import AveragedModel, SWALR, update_bn

torch.manual_seed(37)
net = nn.Sequential(nn.Linear(5, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 2))
avg = AveragedModel(net)
opt = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, nesterov=True)
swa = SWALR(opt, 0.02, anneal_epochs=3)
loader = [(torch.randn(16, 5), torch.randint(0, 2, (16,))) for _ in range(6)]
for ep in range(6):
    for x, y in loader:
        loss = nn.functional.cross_entropy(net(x), y, label_smoothing=0.1)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if ep > 2:
        avg.update_parameters(net)
        swa.step()
update_bn([x for x, _ in loader], avg)
print(loss.item())
