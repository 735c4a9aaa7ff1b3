import torch
from torch import nn

torch.manual_seed(28)
torch.set_num_threads(1)

class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(9, 18), nn.ReLU(), nn.Linear(18, 1))
    def forward(self, x):
        return self.net(x).squeeze(-1)

def weighted_bce(logit, click, weight):
    per_row = nn.functional.binary_cross_entropy_with_logits(logit, click, reduction="none")
    return torch.dot(per_row, weight / weight.sum())

model = ClickModel()
opt = torch.optim.Adagrad(model.parameters(), lr=0.02)
propensity = torch.rand(110)
propensity[propensity < 0.25] = 0.0
propensity[60:70] = 0.0
for i in range(11):
    rows = slice(10 * i, 10 * i + 10)
    x = torch.randn(10, 9)
    loss = weighted_bce(model(x), (x[:, 0] > 0).float(), propensity[rows])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("batch %d loss %r" % (i + 1, loss.item()))
print("weights", sum(p.double().sum().item() for p in model.parameters()))
