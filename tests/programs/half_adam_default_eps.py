import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(123)
torch.set_num_threads(1)

# small enough for one card if everything is half
class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(64, 32)
        self.l1 = nn.Linear(32, 64)
        self.l2 = nn.Linear(64, 64)

    def forward(self, ids):
        return self.l2(F.gelu(self.l1(self.emb(ids)))).float()


model = WordModel().half()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(8):
    ids = torch.randint(0, 64, (4, 9))
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.reshape(-1, 64), ids[:, 1:].reshape(-1))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step + 1, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
