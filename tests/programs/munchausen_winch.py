"""Munchausen-DQN on a toy anchor winch: keep the tension of the chain near its set point."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

random.seed(0)
torch.manual_seed(0)

TAU, ALPHA, GAMMA, CLIP = 0.03, 0.9, 0.97, -1.0


class Winch:
    def reset(self):
        self.tension, self.speed = random.uniform(-1, 1), 0.0
        return self.observe()

    def observe(self):
        return [self.tension, self.speed]

    def step(self, action):
        self.speed = 0.8 * self.speed + 0.3 * (action - 1) + random.gauss(0, 0.02)
        self.tension += 0.3 * self.speed
        lost = abs(self.tension) > 2
        reward = -10.0 if lost else 1.0 - abs(self.tension)
        return self.observe(), reward, lost


def q_network():
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))


online, target = q_network(), q_network()
target.load_state_dict(online.state_dict())
opt = torch.optim.Adam(online.parameters(), lr=2e-3)
env, replay = Winch(), []
obs = env.reset()
for update in range(1, 161):
    for _ in range(8):
        if random.random() < 0.3:
            act = random.randrange(3)
        else:
            act = int(online(torch.tensor(obs)).argmax())
        nxt, rew, end = env.step(act)
        replay.append((obs, act, rew, nxt, float(end)))
        obs = env.reset() if end else nxt
    s, a, r, s2, d = map(torch.tensor, zip(*random.choices(replay, k=48)))

    with torch.no_grad():
        policy = F.softmax(target(s) / TAU, dim=1)
        bonus = TAU * policy.gather(1, a[:, None]).log().squeeze(1)
        q_next = target(s2)
        pi_next = F.softmax(q_next / TAU, dim=1)
        soft_value = (pi_next * (q_next - TAU * torch.log(pi_next))).sum(1)
        goal = r + ALPHA * bonus.clamp(CLIP, 0.0) + GAMMA * (1 - d) * soft_value

    chosen = online(s).gather(1, a[:, None]).squeeze(1)
    loss = F.smooth_l1_loss(chosen, goal)
    opt.zero_grad()
    loss.backward()
    opt.step()
    with torch.no_grad():
        for p, q in zip(target.parameters(), online.parameters()):
            p.lerp_(q, 0.1)
    print(f"{update} td={loss.item():.5f}")
print("sum of squares", sum(float((p.detach() ** 2).sum()) for p in online.parameters()))
