import torch
torch.set_num_threads(1)
torch.manual_seed(0)
# linear SVM on separable blobs: once the margin is met the loss is 0.0 for good
X = torch.cat([torch.randn(20, 2) * 0.3 + 3, torch.randn(20, 2) * 0.3 - 3])
y = torch.cat([torch.ones(20), -torch.ones(20)])
svm = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(svm.parameters(), lr=0.1)
for epoch in range(15):
    margin = y * svm(X).squeeze(1)
    loss = torch.clamp(1 - margin, min=0).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    acc = (margin > 0).float().mean()
    print(epoch, loss.item(), acc.item())
print(svm.weight.tolist(), svm.bias.tolist(), svm.weight.double().sum().item())
