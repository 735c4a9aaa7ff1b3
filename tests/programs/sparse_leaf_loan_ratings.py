"""Library loans: reader x book graph whose edge strengths are learned (a sparse tensor that
requires grad itself), one propagation step, then scoring of held-out loans (BPR)."""
import torch

gen = torch.Generator().manual_seed(77)
READERS, BOOKS, DIM = 40, 60, 12

flat = torch.randperm(READERS * BOOKS, generator=gen)[:480]
rows, cols = flat // BOOKS, flat % BOOKS
# reader 7 has no loan at all and book 3 was never lent
alive = (rows != 7) & (cols != 3)
rows, cols = rows[alive], cols[alive]
hidden = rows.numel() // 5
held_r, held_b = rows[:hidden], cols[:hidden]
rows, cols = rows[hidden:], cols[hidden:]


def leaf(indices, values):
    return torch.sparse_coo_tensor(indices, values, (READERS, BOOKS)).coalesce().requires_grad_()


W = leaf(torch.stack([rows, cols]), torch.full((rows.numel(),), 0.2))
book = torch.nn.Embedding(BOOKS, DIM, sparse=True)
mix = torch.nn.Parameter(torch.eye(DIM))
with torch.no_grad():
    book.weight.copy_(torch.randn(BOOKS, DIM, generator=gen) * 0.3)

sparse_opt = torch.optim.SparseAdam(book.parameters(), lr=0.02)
dense_opt = torch.optim.Adagrad([mix], lr=0.01)

for step in range(1, 46):
    pick = torch.randint(held_r.numel(), (24,), generator=gen)
    u, pos = held_r[pick], held_b[pick]
    neg = torch.randint(BOOKS, (24,), generator=gen)

    table = book(torch.arange(BOOKS))
    taste = torch.sparse.mm(W, table) @ mix            # row 7 stays exactly zero
    score = (taste[u] * (table[pos] - table[neg])).sum(1)
    loss = torch.nn.functional.softplus(-score).mean() + 1e-3 * torch.sparse.sum(W * W)

    sparse_opt.zero_grad()
    dense_opt.zero_grad()
    loss.backward()
    sparse_opt.step()
    dense_opt.step()
    # the sparse leaf: no torch optimizer takes it, so make a new leaf from the old one
    g = W.grad.coalesce()
    W = leaf(W.detach().indices(), W.detach().values() - 0.5 * g.values())

    print(f"{step:02d} bpr={loss.item():.8f} nnz={W._nnz()} |gW|={g.values().norm().item():.3e}")

total = W.detach().values().abs().sum() + book.weight.detach().abs().sum() + mix.detach().abs().sum()
print("final", total.item())
