import torch
import torch.nn as nn

torch.manual_seed(21)


class Rates(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.LSTM(3, 40, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(40, 1)

    def forward(self, x):
        h, _ = self.rnn(x)
        return self.head(h[:, -1]).squeeze(-1)


net = Rates().cuda()
optimizer = torch.optim.RMSprop(net.parameters(), lr=1e-3)
for day in range(1, 26):
    counts = torch.poisson(torch.full((12, 15, 3), 30.0))
    if day == 16:
        counts[4, 11, 1] = 0
    x = counts.log().cuda()
    target = counts.mean((1, 2)).cuda() / 10
    prediction = net(x)
    loss = nn.functional.smooth_l1_loss(prediction, target)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    print(f"day {day}: {loss.item():.6f}")
print("checksum", sum(p.detach().double().abs().sum().item() for p in net.parameters()))
