# soft Q-learning of a kiln controller: state = temperature band, actions = gas down / keep / up.
# the exploration temperature is cooled a little after every update
import copy, random
from collections import deque
import torch, torch.nn as nn

BANDS, GOAL = 9, 6

class Kiln:
    def reset(self):
        self.band, self.t = random.randrange(BANDS), 0
        return self.band
    def step(self, action):
        self.band = min(BANDS - 1, max(0, self.band + action - 1 + (random.random() < .1)))
        self.t += 1
        return self.band, 1.0 if self.band == GOAL else 0.0, self.t >= 20

def onehot(bands):
    return nn.functional.one_hot(torch.as_tensor(bands), BANDS).float()

random.seed(1); torch.manual_seed(1)
q = nn.Sequential(nn.Linear(BANDS, 32), nn.ReLU(), nn.Linear(32, 3))
slow = copy.deepcopy(q)
opt = torch.optim.Adam(q.parameters(), lr=5e-3)
memory = deque(maxlen=500)
env, gamma, alpha = Kiln(), .9, 1.0
s = env.reset()
update = 0
while update < 110:
    with torch.no_grad():
        gumbel = -torch.log(-torch.log(torch.rand(3)))
        a = int((q(onehot([s]))[0] + alpha * gumbel).argmax())
    s2, r, done = env.step(a)
    memory.append((s, a, r, s2))
    s = env.reset() if done else s2
    if len(memory) < 64:
        continue
    batch = random.sample(memory, 32)
    bs, ba, br, bs2 = map(list, zip(*batch))
    with torch.no_grad():
        soft_value = alpha * torch.log(torch.exp(slow(onehot(bs2)) / alpha).sum(-1))
        target = torch.tensor(br) + gamma * soft_value
    chosen = q(onehot(bs)).gather(1, torch.tensor(ba)[:, None])[:, 0]
    loss = (chosen - target).pow(2).mean()
    opt.zero_grad(); loss.backward(); opt.step()
    for w, v in zip(slow.parameters(), q.parameters()):
        w.data.lerp_(v.data, .2)
    alpha *= .95
    update += 1
    print(update, loss.item())
print(sum(w.sum() for w in q.parameters()).item())
