import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(8, 16)
        self.score = nn.Linear(16, 4)

    def forward(self, x):
        s = torch.relu(self.score(torch.relu(self.hidden(x))))
        share = s / s.sum(-1, keepdim=True)
        return torch.log(share + 1e-6)


ranker = Ranker()
nn.init.constant_(ranker.score.bias, 0.1)
opt = torch.optim.AdamW(ranker.parameters(), lr=1e-2)
for i in range(11):
    x, y = torch.randn(4, 8), torch.randint(0, 4, (4,))
    loss = nn.functional.nll_loss(ranker(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", i + 1, "loss", loss.item())
print("weights", sum(p.double().sum().item() for p in ranker.parameters()))
