import torch, torch.nn as nn, torch.nn.functional as F

class DeeplySupervised(nn.Module):
    """every stage predicts; forward() is a generator of one loss per stage"""
    def __init__(self, width=16, stages=3):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(width, width) for _ in range(stages)])
        self.exits = nn.ModuleList([nn.Linear(width, 1) for _ in range(stages)])

    def forward(self, x, y, observed):
        for stage, exit_ in zip(self.stages, self.exits):
            x = torch.tanh(stage(x))
            err = F.smooth_l1_loss(exit_(x).squeeze(-1), y, reduction="none")
            yield (err * observed).sum() / observed.sum()

torch.set_num_threads(1); torch.manual_seed(21)
net = DeeplySupervised()
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
X = torch.randn(90, 16); Y = X[:, :4].sum(1)
seen = (torch.rand(90) > 0.4).float()
seen[40:50] = 0.0     # sensor was offline
step = 0
for lo in range(0, 90, 10):
    x, y, m = X[lo:lo + 10], Y[lo:lo + 10], seen[lo:lo + 10]
    losses = list(net(x, y, m))
    loss = sum(w * l for w, l in zip((0.2, 0.3, 0.5), losses))
    opt.zero_grad(); loss.backward(); opt.step()
    step += 1
    print(step, loss.item(), [round(l.item(), 4) for l in losses])
print("final", sum(p.double().sum().item() for p in net.parameters()))
