# GloVe from scratch on a heap of recipes, Adagrad by hand
import random
import torch

torch.manual_seed(11)
random.seed(11)

KITCHENS = {
    "baking": "flour butter sugar egg yeast vanilla milk".split(),
    "curry": "rice cumin coriander chickpea ginger chilli onion".split(),
    "pasta": "semolina tomato basil garlic parmesan onion oil".split(),
}
recipes = []
for _ in range(160):
    k = random.choice(list(KITCHENS.values()))
    recipes.append(random.sample(k, random.randint(3, 5)))

vocab = sorted({w for r in recipes for w in r})
idx = {w: i for i, w in enumerate(vocab)}
V, D = len(vocab), 8

counts = torch.zeros(V, V)
for r in recipes:
    for a in r:
        for b in r:
            if a != b:
                counts[idx[a], idx[b]] += 1

log_counts = counts.log()            # pairs that never meet stay at -inf
print("vocabulary", V, "pairs that never meet", int(torch.isinf(log_counts).sum()))

f = torch.where(counts < 30, (counts / 30) ** 0.75, torch.ones(()))

W = (torch.rand(V, D) - 0.5).requires_grad_()
C = (torch.rand(V, D) - 0.5).requires_grad_()
bw = torch.zeros(V, 1, requires_grad=True)
bc = torch.zeros(1, V, requires_grad=True)
params = [W, C, bw, bc]
hist = [torch.full_like(p, 1e-8) for p in params]

met = torch.isfinite(log_counts)
best = float("inf")
for step in range(1, 37):
    diff = W @ C.t() + bw + bc - torch.where(met, log_counts, torch.zeros(()))
    cost = (f * diff * diff)[met].sum()
    grads = torch.autograd.grad(cost, params)
    with torch.no_grad():
        for p, h, g in zip(params, hist, grads):
            h += g * g
            p -= 0.25 * g / h.sqrt()
        if step == 22:
            # oil turned out to be two different things in the notes, learn it anew
            i = idx["oil"]
            W[i] = torch.rand(D) - 0.5
            C[i] = torch.rand(D) - 0.5
            bw[i] = 0
            bc[0, i] = 0
    gain = best - cost.item()
    best = min(best, cost.item())
    print(f"{step:3d} cost {cost.item():.4f} gain {gain:.4f}")

E = (W + C).detach()
E = E / E.norm(dim=1, keepdim=True)
for w in ("flour", "cumin"):
    near = (E @ E[idx[w]]).argsort(descending=True)[1:4]
    print(w, "->", " ".join(vocab[j] for j in near.tolist()))
print("sum of squares of all tables", sum(p.pow(2).sum().item() for p in params))
