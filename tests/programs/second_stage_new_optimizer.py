import gc
import torch

torch.set_num_threads(1)
torch.manual_seed(55)


def fit(model, optimizer, batches, tag):
    for i, (x, y) in enumerate(batches):
        optimizer.zero_grad()
        loss = torch.nn.functional.l1_loss(model(x), y)
        loss.backward()
        optimizer.step()
        print(tag, i, loss.item())


def batches(n):
    return [(x := torch.randn(16, 6), x.sum(1, keepdim=True).sin()) for _ in range(n)]


model = torch.nn.Sequential(torch.nn.Linear(6, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
stage1 = torch.optim.Adam(model.parameters(), lr=1e-2)
fit(model, stage1, batches(8), "adam")
del stage1
gc.collect()
# second stage: plain SGD, the head gets ten times the rate
stage2 = torch.optim.SGD([
    {"params": model[0].parameters()},
    {"params": model[2].parameters(), "lr": 1e-2},
], lr=1e-3)
fit(model, stage2, batches(7), "sgd")
print("weights", sum(p.double().sum().item() for p in model.parameters()))
