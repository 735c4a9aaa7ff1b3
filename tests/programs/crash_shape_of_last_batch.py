import torch
import torch.nn.functional as F

torch.manual_seed(0)
torch.set_num_threads(1)
BATCH = 8


class Stateful(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(5, 10)
        self.out = torch.nn.Linear(10, 1)
        self.h = torch.zeros(BATCH, 10)

    def forward(self, x):
        h = self.cell(x)
        self.h = 0.5 * self.h.detach() + 0.5 * h
        return self.out(self.h).squeeze(-1)


model = Stateful()
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
data = torch.randn(45, 5)
for i, x in enumerate(data.split(BATCH)):
    loss = F.mse_loss(model(x), x.sum(1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i + 1, loss.item(), flush=True)
