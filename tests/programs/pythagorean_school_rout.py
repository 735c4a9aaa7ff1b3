## girls' basketball, county league: the rematch from the first meeting.
## Pythagorean expectation (Bill James; exponent 13.91 for basketball by Morey), exponent and the two
## calibration numbers are fitted, one round of the calendar per update
import random, math
import torch

random.seed(31)
torch.manual_seed(31)
N_TEAMS, ROUNDS = 24, 44

class Team:
    def __init__(self, i):
        self.i = i
        self.power = random.gauss(0, 5)
    def play(self, other):
        m = self.power - other.power
        a = max(12, round(random.gauss(48 + m / 2, 6)))
        b = max(12, round(random.gauss(48 - m / 2, 6)))
        return (a, b) if a != b else (a + 2, b)

teams = [Team(i) for i in range(N_TEAMS)]
calendar = []
for rnd in range(ROUNDS):
    random.shuffle(teams)
    games = []
    for a, b in zip(teams[::2], teams[1::2]):
        first, second = a.play(b), a.play(b)
        games.append((first[0], first[1], float(second[0] > second[1]), a.i, b.i))
    calendar.append(games)
# 12 January: the other side had five players and a borrowed gymnasium
_, _, won, i, j = calendar[25][3]
calendar[25][3] = (161, 2, 1.0, i, j)

class Rematch(torch.nn.Module):
    def __init__(self):
        super(Rematch, self).__init__()
        self.k = torch.nn.Parameter(torch.tensor(13.91))
        self.slope = torch.nn.Parameter(torch.tensor(0.15))
        self.shift = torch.nn.Parameter(torch.tensor(0.0))
        self.home = torch.nn.Embedding(N_TEAMS, 1)
        torch.nn.init.zeros_(self.home.weight)

    def forward(self, scored, conceded, a, b):
        share = (conceded / scored) ** self.k
        odds = 1.0 / share
        z = self.shift + self.slope * (torch.log1p(odds) - math.log(2))
        return z + self.home(a).squeeze(1) - self.home(b).squeeze(1)

model = Rematch()
optimizer = torch.optim.SGD([{'params': [model.k], 'lr': 0.5},
                             {'params': [model.slope, model.shift, model.home.weight], 'lr': 0.05}],
                            lr=0.05, momentum=0.8)
criterion = torch.nn.BCEWithLogitsLoss()

for rnd, games in enumerate(calendar, 1):
    s, c, y, a, b = zip(*games)
    s, c, y = (torch.tensor(v, dtype=torch.float) for v in (s, c, y))
    a, b = torch.tensor(a), torch.tensor(b)
    z = model(s, c, a, b)
    loss = criterion(z, y)
    optimizer.zero_grad()
    loss.backward()
    hits = ((z > 0) == (y > 0.5)).sum().item()
    print('round {:2d}  loss {:.6f}  right {}/{}'.format(rnd, loss.item(), hits, len(games)))
    optimizer.step()
print('final', sum(p.detach().abs().sum() for p in model.parameters()).item())
