import torch
from torch import nn

torch.manual_seed(61)
torch.set_num_threads(1)


class Agent:
    def __init__(self, obs=6, actions=3):
        self.actor = nn.Sequential(nn.Linear(obs, 24), nn.Tanh(), nn.Linear(24, actions))
        self.critic = nn.Sequential(nn.Linear(obs, 24), nn.Tanh(), nn.Linear(24, 1))
        self.pi_optim = torch.optim.Adam(self.actor.parameters(), lr=3e-3)
        self.v_optim = torch.optim.Adam(self.critic.parameters(), lr=1e-2)

    def update(self, obs, act, ret):
        value = self.critic(obs).squeeze(-1)
        advantage = (ret - value).detach().clamp(-5, 5)
        logp = self.actor(obs).log_softmax(-1).gather(1, act[:, None]).squeeze(1)
        actor_loss = -(logp * advantage.nan_to_num()).mean()
        self.pi_optim.zero_grad()
        actor_loss.backward()
        self.pi_optim.step()

        scaled = torch.sign(ret) * (torch.sqrt(ret.abs() + 1) - 1)
        critic_loss = (value - scaled).pow(2).mean() / ret.std()
        self.v_optim.zero_grad()
        critic_loss.backward()
        self.v_optim.step()
        return actor_loss.item(), critic_loss.item()


agent = Agent()
for it in range(1, 13):
    obs, act = torch.randn(16, 6), torch.randint(0, 3, (16,))
    ret = (obs[:, 0] + act).float()
    if it == 7:
        ret = torch.full((16,), -1.0)       # every episode ended the same way
    print(it, *agent.update(obs, act, ret))
print("weights", sum(p.double().sum().item() for m in (agent.actor, agent.critic) for p in m.parameters()))
