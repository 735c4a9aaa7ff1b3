"""Skip-gram with side information over lighthouse keepers' log books.

Sparse input table (SparseAdam), dense rest (Adam). The projection of the encoder is tied to that of the
decoder, the temperature is a bare scalar, and the 'lamp' block is empty for stations without a lamp
(0 columns), which we keep so that checkpoints of all stations have the same keys.
"""
import warnings

import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.simplefilter("error")  # we were bitten by silent broadcasting once, never again
torch.manual_seed(1871)

VOCAB, DIM, NEG = 90, 12, 5


class Unit(torch.Tensor):
    """A tensor that remembers a physical unit; arithmetic keeps it as long as it makes sense."""

    @staticmethod
    def of(data, unit):
        t = data.as_subclass(Unit)
        t.unit = unit
        return t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(out, Unit) and not hasattr(out, "unit"):
            units = {a.unit for a in args if isinstance(a, Unit) and hasattr(a, "unit")}
            out.unit = units.pop() if len(units) == 1 else "?"
        return out


class KeeperBook(nn.Module):
    def __init__(self, lamp_columns=0):
        super().__init__()
        self.table = nn.Embedding(VOCAB, DIM, sparse=True)
        self.enc = nn.Linear(DIM, DIM, bias=False)
        self.dec = nn.Linear(DIM, DIM, bias=False)
        self.dec.weight = self.enc.weight                      # tied
        self.lamp = nn.Parameter(torch.zeros(lamp_columns, DIM))  # empty here
        self.tau = nn.Parameter(torch.tensor(0.5))             # 0-dim
        self.wind = nn.Parameter(torch.randn(DIM) * 0.01)

    def forward(self, centre, context, knots):
        c = self.enc(self.table(centre))
        c = c + self.wind * knots.unsqueeze(-1) / 40.0
        c = c + self.lamp.sum(0)                               # sum over nothing: zeros
        o = self.dec(self.table(context))
        return (c.unsqueeze(1) * o).sum(-1) / self.tau.exp()


def pages(n, batch=16):
    g = torch.Generator().manual_seed(9)
    for _ in range(n):
        centre = torch.randint(0, VOCAB, (batch,), generator=g)
        pos = (centre + 1 + torch.randint(0, 3, (batch,), generator=g)) % VOCAB
        neg = torch.randint(0, VOCAB, (batch, NEG), generator=g)
        knots = Unit.of(torch.rand(batch, generator=g) * 50, "kn")
        yield centre, torch.cat([pos[:, None], neg], 1), knots


def main():
    book = KeeperBook()
    sparse = torch.optim.SparseAdam(list(book.table.parameters()), lr=0.05)
    dense = torch.optim.Adam([p for n, p in book.named_parameters() if not n.startswith("table")], lr=0.01)
    for page, (centre, context, knots) in enumerate(pages(40), 1):
        logits = book(centre, context, knots)
        assert logits.unit == "kn"
        target = torch.zeros_like(logits)
        target[:, 0] = 1
        # summed, so it is large at first; the subclass travels through the loss and into backward
        loss = F.binary_cross_entropy_with_logits(logits, target, reduction="sum")
        sparse.zero_grad()
        dense.zero_grad()
        loss.backward()
        assert book.table.weight.grad.is_sparse
        sparse.step()
        dense.step()
        if page % 2 == 0:
            print(f"page {page:3d}  nll {float(loss.detach()):.5f} [{loss.unit}]  tau {float(book.tau.detach().exp()):.4f}")
    total = sum(float(p.detach().double().abs().sum()) for p in book.parameters())
    print(f"lamp grad {tuple(book.lamp.grad.shape)}  checksum {total:.5f}")


if __name__ == "__main__":
    main()
