import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
# six facts, learned by heart: cross entropy underflows to exactly 0.0 and the gradients with it
facts = torch.eye(6)
answers = torch.tensor([3, 1, 4, 1, 5, 0])
net = nn.Linear(6, 6)
sgd = torch.optim.SGD(net.parameters(), lr=3000.0)
for i in range(12):
    loss = nn.functional.cross_entropy(net(facts), answers)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    g = sum(p.grad.abs().sum().item() for p in net.parameters())
    print(i, loss.item(), g)
print("right", (net(facts).argmax(1) == answers).sum().item(), net.weight.double().sum().item())
