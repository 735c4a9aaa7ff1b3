import torch
import torch.nn as nn


class ScriptedLoss(nn.Module):
    def __init__(self, smoothing: float):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        logp = torch.log_softmax(logits, dim=-1)
        nll = -logp.gather(1, target.unsqueeze(1)).squeeze(1)
        return ((1.0 - self.smoothing) * nll - self.smoothing * logp.mean(dim=-1)).sum()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(10, 30)
        self.fc2 = nn.Linear(30, 7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.relu(self.fc1(x)))


torch.manual_seed(0)
torch.set_num_threads(1)
net = Net()
criterion = torch.jit.script(ScriptedLoss(0.1))
opt = torch.optim.Adadelta(net.parameters(), lr=1.0)
x = torch.randn(140, 10)
y = x[:, :7].argmax(1)
for epoch in range(3):
    for rows in torch.arange(140).split(28):
        loss = criterion(net(x[rows]), y[rows])
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(epoch, loss.item())
net.eval()
scripted, traced = torch.jit.script(net), torch.jit.trace(net, x[:2])
exported = torch.export.export(net, (x[:2],))
print(scripted(x[:2]).equal(net(x[:2])), traced(x[:2]).equal(net(x[:2])), exported.module()(x[:2]).equal(net(x[:2])))
print("weights", sum(p.double().sum().item() for p in net.parameters()))
