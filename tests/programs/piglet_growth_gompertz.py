import datetime as dt

import numpy as np
import pandas as pd
import torch
from torch import nn
from torch.utils.data import Dataset

BREEDS = ["landrace", "duroc", "pietrain"]


def herd_book(seed=3, pens=36, weighings=10):
    """The herd book as it was typed in: one row a weighing, ten rows a page."""
    r = np.random.RandomState(seed)
    rows = []
    for pen in range(pens):
        breed = BREEDS[r.randint(3)]
        born = dt.date(2023, 3, 1) + dt.timedelta(days=int(r.randint(300)))
        for days in sorted(r.choice(np.arange(20, 190), weighings, replace=False)):
            kg = (180 + 15 * BREEDS.index(breed)) * np.exp(-np.exp(-0.017 * (days - 105.0)))
            kg = kg * np.exp(r.normal(0, 0.04))
            rows.append((pen, breed, r.randint(8, 15), born.isoformat(),
                         (born + dt.timedelta(days=int(days))).isoformat(), round(kg, 1)))
    return pd.DataFrame(rows, columns=["pen", "breed", "litter", "born", "weighed", "kg"])


def second_reading(book):
    """Cells that were illegible on the scan and were typed again by the office."""
    retyped = {57: "2023-08-16", 141: "1923-11-04", 233: "2023-10-21", 304: "2023-12-30"}
    for row, day in retyped.items():
        book.loc[row, "weighed"] = day
    return book


class Pens(Dataset):
    def __init__(self, book):
        age = pd.to_datetime(book["weighed"]) - pd.to_datetime(book["born"])
        book = book.assign(age=age.dt.days, breed=book["breed"].map(BREEDS.index))
        self.pages = [page for _, page in book.groupby("pen")]

    def __len__(self):
        return len(self.pages)

    def __getitem__(self, i):
        page = self.pages[i]
        return (torch.tensor(page["breed"].to_numpy()), torch.tensor(page["litter"].to_numpy(), dtype=torch.float32),
                torch.tensor(page["age"].to_numpy(), dtype=torch.float32),
                torch.tensor(page["kg"].to_numpy(), dtype=torch.float32))


class Gompertz(nn.Module):
    def __init__(self):
        super().__init__()
        self.log_mature = nn.Parameter(torch.full((3,), 5.0))
        self.log_rate = nn.Parameter(torch.full((3,), -3.9))
        self.midpoint = nn.Parameter(torch.full((3,), 90.0))
        self.crowding = nn.Parameter(torch.zeros(()))

    def forward(self, breed, litter, age):
        mature = torch.exp(self.log_mature[breed] + self.crowding * (litter - 11) / 10)
        rate = self.log_rate[breed].exp()
        return mature * torch.exp(-torch.exp(-rate * (age - self.midpoint[breed])))


class Herd(nn.Module):
    def __init__(self):
        super().__init__()
        self.curve = Gompertz()
        self.bias_of_scale = nn.Parameter(torch.zeros(1))

    def forward(self, breed, litter, age):
        return self.curve(breed, litter, age) + self.bias_of_scale


torch.manual_seed(0)
data = Pens(second_reading(herd_book()))
herd = Herd()
slow = [p for n, p in herd.named_parameters() if "midpoint" not in n]
opt = torch.optim.Adam([{"params": slow, "lr": 0.02}, {"params": [herd.curve.midpoint], "lr": 1.0}])
for n, i in enumerate(range(len(data)), 1):
    breed, litter, age, kg = data[i]
    guess = herd(breed, litter, age)
    cost = nn.functional.huber_loss(guess, kg, delta=8.0)
    opt.zero_grad(set_to_none=True)
    cost.backward()
    opt.step()
    print(f"page {n:>2}: huber {cost.item():8.3f}   heaviest guess {guess.max().item():7.2f} kg")
print("norm of the fitted curve:", torch.cat([p.detach().flatten() for p in herd.parameters()]).norm().item())
