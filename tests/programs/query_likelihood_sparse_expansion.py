import torch
from torch import nn

# Language-model retrieval: every document is expanded to a sparse term distribution (SPLADE-like), mixed with the
# collection model (Jelinek-Mercer), and scored by the likelihood of its queries; unused terms are priced away.

torch.manual_seed(0)
rng = torch.Generator().manual_seed(42)

V, D = 120, 160
USED = 100                                  # ids 100..119 are reserved and occur in no document
lam = 0.6

docs = torch.zeros(D, V)
queries = torch.zeros(D, V)
for d in range(D):
    topic = int(torch.randint(0, 10, (1,), generator=rng))
    terms = (topic * 10 + torch.randint(0, 14, (25,), generator=rng)) % USED
    docs[d].index_add_(0, terms, torch.ones(25))
    asked = terms[torch.randint(0, 25, (4,), generator=rng)]
    queries[d].index_add_(0, asked, torch.ones(4))
collection = (docs.sum(0) + 0.0) / docs.sum()


class Expander(nn.Module):
    def __init__(self, vocab, width=32):
        super().__init__()
        self.read = nn.Sequential(nn.Linear(vocab, width), nn.GELU(), nn.Linear(width, width))
        self.write = nn.Linear(width, vocab)
        nn.init.constant_(self.write.bias, 1.5)

    def forward(self, counts):
        weights = torch.relu(self.write(self.read(torch.log1p(counts))))
        return weights


class QueryLikelihood(nn.Module):
    def __init__(self):
        super().__init__()
        self.expander = Expander(V)

    def forward(self, counts, query):
        w = self.expander(counts)
        p = lam * w / w.sum(1, keepdim=True) + (1 - lam) * collection
        # 0 * log 0 = 0: xlogy takes care of the terms that are not asked for
        log_likelihood = torch.xlogy(query, p).sum(1)
        return -log_likelihood.mean() / 4, w


model = QueryLikelihood()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for step in range(1, 61):
    picked = torch.randint(0, D, (32,), generator=rng)
    nll, w = model(docs[picked], queries[picked])
    flops = w.mean(0).square().sum()
    loss = nll + 0.003 * flops
    optimizer.zero_grad()
    loss.backward()
    print(f"step {step}: nll {nll.item():.6f} flops {flops.item():.4f} terms {(w > 0).float().sum(1).mean().item():.1f}")
    optimizer.step()
print("final", torch.cat([p.detach().flatten() for p in model.parameters()]).abs().sum().item())
