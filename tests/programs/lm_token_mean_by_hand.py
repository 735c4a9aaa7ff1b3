import torch
import torch.nn as nn

torch.manual_seed(12)
torch.set_num_threads(1)

model = nn.Sequential(nn.Embedding(50, 20), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 50))
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)


class TokenLoss(nn.Module):
    def forward(self, logits, labels):
        keep = labels != -100
        nll = -logits.log_softmax(-1).gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return (nll * keep).sum() / keep.sum()


criterion = TokenLoss()
for step in range(1, 15):
    ids = torch.randint(0, 50, (3, 12))
    answer_from = torch.randint(4, 10, (3, 1))
    if step in (6, 7):
        answer_from[:] = 12
    labels = ids.masked_fill(torch.arange(12)[None] < answer_from, -100)
    loss = criterion(model(ids[:, :-1]), labels[:, 1:])
    loss.backward()
    opt.step()
    opt.zero_grad()
    print({"step": step, "loss": loss.item()})
print("weights", sum(p.double().sum().item() for p in model.parameters()))
