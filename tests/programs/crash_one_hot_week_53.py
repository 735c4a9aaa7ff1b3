"""Ice cream sales by calendar week, one-hot coded.  There are 52 weeks in a year, mostly."""
import datetime

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(80)
torch.set_num_threads(1)


class Calendar(nn.Module):
    def __init__(self, weeks=52):
        super().__init__()
        self.weeks = weeks

    def forward(self, week):
        return F.one_hot(week - 1, num_classes=self.weeks).float()


class Sales(nn.Module):
    def __init__(self):
        super().__init__()
        self.calendar = Calendar()
        self.regress = nn.Sequential(nn.Linear(53, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, week, weekday):
        features = torch.cat([self.calendar(week), weekday[:, None] / 7], -1)
        return self.regress(features).squeeze(-1)


def days(first, count):
    for i in range(count):
        day = first + datetime.timedelta(days=i)
        week = day.isocalendar()[1]
        yield week, day.isoweekday(), 5.0 - abs(week - 28) / 6


def batches(first=datetime.date(2019, 1, 7), total=112 * 8, size=28):
    rows = list(days(first, total))
    for at in range(0, total, size):
        week, weekday, sold = zip(*rows[at:at + size])
        yield torch.tensor(week), torch.tensor(weekday), torch.tensor(sold)


model = Sales()
opt = torch.optim.Adadelta(model.parameters(), lr=1.0)
for step, (week, weekday, sold) in enumerate(batches(), 1):
    prediction = model(week, weekday)
    loss = F.huber_loss(prediction, sold)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(f"step {step:02d} huber {loss.item():.4f}")
print("done")
