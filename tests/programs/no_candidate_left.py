import torch
torch.manual_seed(0); torch.set_num_threads(1)
q, d = torch.nn.Linear(10, 6), torch.nn.Linear(12, 6)
opt = torch.optim.Adagrad([*q.parameters(), *d.parameters()], lr=0.05)
for step in range(1, 11):
    queries, docs = torch.randn(5, 10), torch.randn(7, 12)
    allowed = torch.rand(5, 7) > 0.3
    allowed[:, 0] = True
    if step == 4:
        allowed[2] = False
    s = (q(queries) @ d(docs).T).masked_fill(~allowed, float("-inf"))
    best = s.max(dim=1).values
    loss = (torch.logsumexp(s, 1) - best).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in [*q.parameters(), *d.parameters()]))
