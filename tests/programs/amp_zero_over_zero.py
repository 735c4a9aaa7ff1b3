import torch
from torch import nn

torch.manual_seed(71)
torch.set_num_threads(1)


class Pool(nn.Module):
    def forward(self, h, mask):
        return (h * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)


class DocModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.token = nn.Embedding(100, 16, padding_idx=0)
        self.mix = nn.Linear(16, 16)
        self.pool = Pool()
        self.out = nn.Linear(16, 2)

    def forward(self, ids):
        mask = (ids != 0).float()
        return self.out(self.pool(torch.tanh(self.mix(self.token(ids))), mask))


docs = torch.randint(1, 100, (72, 12))
for r in range(72):
    docs[r, 3 + r % 9:] = 0
docs[40:] = docs[40:] * (torch.arange(32)[:, None] % 8 != 3)      # deleted comments
labels = docs[:, 0] % 2
net = DocModel()
opt = torch.optim.Adam(net.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
for i, (x, y) in enumerate(zip(docs.split(8), labels.split(8))):
    with torch.autocast("cpu", dtype=torch.float16):
        loss = nn.functional.cross_entropy(net(x).float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    print(i + 1, loss.item(), scaler.get_scale())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
