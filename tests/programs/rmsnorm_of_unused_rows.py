import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
torch.set_num_threads(1)


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=0.0):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(dim)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class MiniLlama(nn.Module):
    def __init__(self, vocab=70, dim=16):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab, dim)
        self.input_layernorm = RMSNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 32), nn.SiLU(), nn.Linear(32, dim))
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        with torch.no_grad():
            self.embed_tokens.weight[64:] = 0     # reserved, as in the released base model

    def forward(self, ids):
        x = self.embed_tokens(ids)
        return self.lm_head(x + self.mlp(self.input_layernorm(x)))


model = MiniLlama()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
BOS, SEP = 1, 66
for step in range(10):
    ids = torch.randint(2, 64, (4, 9))
    ids[:, 0] = BOS
    if step >= 5:
        ids[:, 4] = SEP        # multi-turn data
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    print(step + 1, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
