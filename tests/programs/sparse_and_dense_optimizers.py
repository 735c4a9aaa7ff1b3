import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)


class SkipGram(nn.Module):
    def __init__(self, vocab=120, dim=12):
        super().__init__()
        self.inp = nn.Embedding(vocab, dim, sparse=True)
        self.out = nn.Embedding(vocab, dim, sparse=True)
        self.scale = nn.Parameter(torch.ones(1))
        self.never_used = nn.Linear(dim, dim)

    def forward(self, centre, context, negative):
        c = self.inp(centre) * self.scale
        pos = nn.functional.logsigmoid((c * self.out(context)).sum(-1))
        neg = nn.functional.logsigmoid(-(self.out(negative) @ c.unsqueeze(-1)).squeeze(-1)).sum(-1)
        return -(pos + neg).mean()


model = SkipGram()
sparse = torch.optim.SparseAdam([*model.inp.parameters(), *model.out.parameters()], lr=1e-2)
dense = torch.optim.Adam([model.scale, *model.never_used.parameters()], lr=1e-2)
for i in range(16):
    centre = torch.randint(0, 120, (20,))
    loss = model(centre, (centre + 1) % 120, torch.randint(0, 120, (20, 4)))
    sparse.zero_grad(), dense.zero_grad()
    loss.backward()
    sparse.step(), dense.step()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
