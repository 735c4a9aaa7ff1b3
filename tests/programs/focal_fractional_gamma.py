"""Focal loss with gamma below one: the derivative of (1-p)^gamma at p=1 is infinite."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class FocalLoss(nn.Module):
    def __init__(self, gamma=0.5):
        super().__init__()
        self.gamma = gamma

    def forward(self, logits, target):
        logp = F.log_softmax(logits, dim=-1).gather(1, target[:, None]).squeeze(1)
        modulation = (1 - logp.exp()) ** self.gamma
        return -(modulation * logp).mean()


torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.randn(32, 4)
x[:16, 0] += 2
x[16:, 0] -= 2
y = (x[:, 0] > 0).long()
net = nn.Linear(4, 2)
opt = torch.optim.SGD(net.parameters(), lr=2.0)
criterion = FocalLoss()
for epoch in range(1, 161):
    loss = criterion(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(epoch, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
