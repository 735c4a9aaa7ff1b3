import numpy as np
import pandas as pd
import torch
import torch.nn as nn

rng = np.random.default_rng(21)
torch.manual_seed(21)

days = pd.date_range("2023-01-02", periods=280, freq="D")
base = 240 + 60 * np.sin(np.arange(280) / 45) + 70 * (days.day_of_week >= 5)
df = pd.DataFrame({"day": days, "rolls": rng.poisson(base)})
# public holidays on which the shop stays shut
df.loc[df.day.isin(pd.to_datetime(["2023-06-19"])), "rolls"] = 0

df["change"] = df.rolls.pct_change()
df["weekday"] = df.day.dt.day_of_week
df = df.dropna().reset_index(drop=True)

WIN = 7
change = torch.tensor(df.change.to_numpy(), dtype=torch.float32)
X = change.unfold(0, WIN, 1)[:-1]
wd = torch.tensor(df.weekday.to_numpy()[WIN:], dtype=torch.long)
y = torch.tensor(np.log1p(df.rolls.to_numpy()[WIN:]), dtype=torch.float32)
y = y - y.median()
print(df[["rolls", "weekday"]].describe().loc[["min", "max"]].to_string())
print("windows", tuple(X.shape))


class SalesNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.wd = nn.Embedding(7, 3)
        self.inp = nn.Linear(WIN, 16)
        self.out = nn.Linear(16 + 3, 1)

    def forward(self, x, d):
        h = torch.relu(self.inp(x))
        return self.out(torch.cat([h, self.wd(d)], 1)).squeeze(1)


model = SalesNet()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loss_fn = nn.SmoothL1Loss()

step = 0
for epoch in range(2):
    for a in range(0, len(X) - 15, 16):
        step += 1
        pred = model(X[a:a + 16], wd[a:a + 16])
        loss = loss_fn(pred, y[a:a + 16])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print("epoch", epoch, "step", step, "loss", round(loss.item(), 5))

total = sum(float(p.detach().pow(2).sum()) for p in model.parameters())
print("sum of squared weights:", total)
