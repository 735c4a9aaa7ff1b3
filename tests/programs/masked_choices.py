import torch, torch.nn as nn

torch.manual_seed(31)
net = nn.Linear(10, 6)
opt = torch.optim.Adam(net.parameters(), 1e-2)
for i in range(25):
    x = torch.randn(8, 10)
    legal = torch.rand(8, 6) > 0.4
    legal[:, 0] = True
    logits = net(x).masked_fill(~legal, -torch.inf)
    dist = torch.distributions.Categorical(logits=logits)
    a = dist.sample()
    loss = -(dist.log_prob(a) * (a == 0).float()).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
print(loss.item())
