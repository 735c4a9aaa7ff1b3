import torch
from torch.distributions import Categorical

torch.set_num_threads(1)
torch.manual_seed(42)

class Policy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Linear(4, 16)
        self.head = torch.nn.Linear(16, 3)
        self.saved_log_probs, self.rewards = [], []

    def forward(self, s):
        return Categorical(logits=self.head(torch.tanh(self.body(s))))

policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
eps = torch.finfo(torch.float32).eps
running = 10

def select_action(state):
    dist = policy(state)
    a = dist.sample()
    policy.saved_log_probs.append(dist.log_prob(a))
    return a.item()

def finish_episode():
    R, returns, losses = 0, [], []
    for r in policy.rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    for lp, R in zip(policy.saved_log_probs, returns):
        losses.append(-lp * R)
    optimizer.zero_grad()
    loss = torch.stack(losses).sum()
    loss.backward()
    optimizer.step()
    del policy.rewards[:]
    del policy.saved_log_probs[:]
    return loss.item()

for episode in range(12):
    state = torch.randn(4)
    for t in range(25):
        a = select_action(state)
        policy.rewards.append(1.0 if episode < 2 else float(a == int(state[:3].argmax())))
        state = torch.randn(4)
    total = sum(policy.rewards)
    running = 0.05 * total + 0.95 * running
    print('Episode {}\tloss {!r}\treward {:.1f}\taverage {:.3f}'.format(episode, finish_episode(), total, running))
print('params', sum(p.double().sum().item() for p in policy.parameters()))
