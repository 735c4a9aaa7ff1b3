"""Layout classifier for scanned pages; the contrast of every page is normalised in half precision first."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(1)
torch.set_num_threads(1)


class HalfContrast(nn.Module):
    """Zero mean and unit variance per page, in float16 to save memory."""

    def __init__(self, eps=1e-8):
        super().__init__()
        self.eps = eps

    def forward(self, pages):
        x = pages.half()
        centred = x - x.mean(dim=(1, 2), keepdim=True)
        spread = centred.pow(2).mean(dim=(1, 2), keepdim=True)
        return centred / torch.sqrt(spread + self.eps)


class Layout(nn.Module):
    def __init__(self):
        super().__init__()
        self.contrast = HalfContrast()
        self.conv = nn.Conv2d(1, 6, 3, stride=2, padding=1)
        self.out = nn.Linear(6 * 8 * 8, 3)

    def forward(self, pages):
        x = self.contrast(pages).float().unsqueeze(1)
        x = F.gelu(self.conv(x))
        return self.out(x.flatten(1))


def scan(kind, g):
    """0: one column, 1: two columns, 2: a table."""
    page = torch.ones(16, 16)
    rows = torch.rand(16, generator=g) < 0.6
    rows[3] = True
    page[rows] = 0.2
    if kind >= 1:
        page[:, 7:9] = 1.0
    if kind == 2:
        page[::5] = 0.0
    return page


def pages_of(book, g):
    pages = [scan(kind, g) for kind in book]
    return torch.stack(pages), torch.tensor(book)


def main():
    g = torch.Generator().manual_seed(2)
    model = Layout()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(1, 25):
        book = torch.randint(0, 3, (8,), generator=g).tolist()
        x, y = pages_of(book, g)
        if number == 10:
            x[-1] = 1.0                       # the last page of this book is empty paper
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"book {number} loss {loss.item():.4f}")
    print("finite", int(sum(int((~torch.isfinite(p)).sum()) for p in model.parameters()) == 0))


main()
