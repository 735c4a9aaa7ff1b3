import math

import torch

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Linear(6, 3)
opt = torch.optim.SGD(net.parameters(), lr=0.2)
history = []
for step in range(16):
    x = torch.randn(12, 6)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 1.5).long().clamp(max=1)
    y = y.clamp(max=2)
    logits = net(x)
    loss = torch.nn.functional.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        pred = logits.argmax(1)
        hit = torch.stack([((pred == c) & (y == c)).sum() for c in range(3)]).float()
        recall = hit / torch.stack([(y == c).sum() for c in range(3)])        # 0/0 for a class that is absent
        log_odds = torch.log(recall / (1 - recall))                           # inf where recall is 1
        history.append(recall)
    print(step, loss.item(), torch.nanmean(recall).item(), log_odds.isinf().sum().item())
print("nan recalls", int(torch.stack(history).isnan().sum()), math.nan)
print("weights", sum(p.double().sum().item() for p in net.parameters()))
