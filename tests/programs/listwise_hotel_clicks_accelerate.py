import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

PAGE = 10


def search_pages(count, seed):
    g = torch.Generator().manual_seed(seed)
    taste = torch.tensor([1.2, -0.9, 0.7, 0.4, -0.3, 0.0])
    pages = []
    for i in range(count):
        hotels = PAGE if i not in (137, 205) else 6   # a fair in town: few rooms left
        x = torch.randn(hotels, 6, generator=g)
        appeal = x @ taste + 0.5 * torch.randn(hotels, generator=g)
        order = appeal.argsort(descending=True)       # dwell time after the click, longest first
        pages.append(x[order])
    return pages


def collate(pages):
    lengths = torch.tensor([len(p) for p in pages])
    x = pad_sequence(pages, batch_first=True)
    if x.shape[1] < PAGE:
        x = nn.functional.pad(x, (0, 0, 0, PAGE - x.shape[1]))
    return {"hotels": x, "present": torch.arange(PAGE)[None] < lengths[:, None]}


class HotelScorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(6, 20), nn.Tanh())
        self.context = nn.Linear(20, 20)
        self.head = nn.Linear(20, 1)

    def forward(self, hotels):
        h = self.embed(hotels)
        h = h + torch.tanh(self.context(h))
        return self.head(h).squeeze(-1)


class ListMLE(nn.Module):
    """Likelihood of the whole order: each hotel is chosen among itself and those below it."""

    def forward(self, scores, present):
        scores = scores - scores.detach().amax(-1, keepdim=True)
        weight = scores.exp() * present
        below = weight.flip(-1).cumsum(-1).flip(-1)
        terms = torch.where(present, below.log() - scores, 0.0)
        return terms.sum() / present.sum()


def training_function():
    set_seed(17)
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(search_pages(272, 9), batch_size=8, collate_fn=collate)
    model, criterion = HotelScorer(), ListMLE()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=34)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
    model.train()
    for step, batch in enumerate(loader, start=1):
        with accelerator.accumulate(model):
            loss = criterion(model(batch["hotels"]), batch["present"])
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        accelerator.print(f"[{step:>2}/{len(loader)}] loss={loss.item():.5f}")
    weights = list(model.parameters())
    accelerator.print("sum of weights squared =", sum(w.detach().square().sum().item() for w in weights))


if __name__ == "__main__":
    training_function()
