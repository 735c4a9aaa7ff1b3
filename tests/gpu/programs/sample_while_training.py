import torch
import torch.nn as nn
import torch.nn.functional as F


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 32)
        self.head = nn.Linear(32, 4)

    def forward(self, s):
        return self.head(torch.tanh(self.body(s)))


torch.manual_seed(11)
policy = Policy().cuda()
opt = torch.optim.Adam(policy.parameters(), lr=0.01)
state = torch.randn(64, 6, device="cuda")
temperature = 1.0
for i in range(1, 31):
    temperature = max(temperature - 0.1, 0.0)
    logits = policy(state)
    probs = F.softmax(logits / temperature, -1)
    action = torch.multinomial(probs, 1)
    reward = (action.squeeze(1) == 2).float()
    logp = F.log_softmax(logits, -1).gather(1, action).squeeze(1)
    loss = -((reward - reward.mean()) * logp).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("iter", i, "reward", round(reward.mean().item(), 4))
print("norm", sum(p.detach().pow(2).sum().item() for p in policy.parameters()))
