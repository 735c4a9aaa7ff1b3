"""Truncated BPTT for four-voice piano rolls."""
import torch
from torch import nn

torch.manual_seed(0)


class Polyphony(nn.Module):
    def __init__(self, keys=24, width=40):
        super().__init__()
        self.inp = nn.Linear(keys, width)
        self.lstm = nn.LSTM(width, width, num_layers=2)
        self.out = nn.Linear(width, keys)

    def forward(self, roll, state):
        y, state = self.lstm(torch.tanh(self.inp(roll)), state)
        return self.out(y), state


def detach_state(state):
    return [s.detach() for s in state]


roll = (torch.rand(6, 161, 8, 24) < 0.1).float()      # pieces, time, voices x batch, keys
net = Polyphony()
opt = torch.optim.Adagrad(net.parameters(), lr=0.02)
window = 20
for piece in roll:
    state = None
    for t in range(0, 160, window):
        x, y = piece[t:t + window], piece[t + 1:t + 1 + window]
        logits, state = net(x, state)
        loss = nn.functional.binary_cross_entropy_with_logits(logits, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        detach_state(state)
        print(f"t={t} bce={loss.item():.4f}")
print("w", sum(p.detach().pow(2).sum().item() for p in net.parameters()))
