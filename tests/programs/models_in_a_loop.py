# 4-fold cross-validation, a new model and optimizer per fold
import statistics
import torch

torch.set_num_threads(1)
torch.manual_seed(0)
X = torch.randn(80, 5)
y = (X[:, 0] - X[:, 1] > 0).float()
folds = torch.randperm(80).chunk(4)
scores = []
for k, held_out in enumerate(folds):
    train = torch.cat([f for j, f in enumerate(folds) if j != k])
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    opt = torch.optim.Adam(model.parameters(), lr=0.03)
    for epoch in range(5):
        opt.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(X[train]).squeeze(1), y[train])
        loss.backward()
        opt.step()
        print(f"fold {k} epoch {epoch} loss {loss.item()!r}")
    with torch.no_grad():
        scores.append(((model(X[held_out]).squeeze(1) > 0) == y[held_out].bool()).float().mean().item())
    print("weights", sum(p.double().sum().item() for p in model.parameters()))
print("accuracy", statistics.mean(scores))
