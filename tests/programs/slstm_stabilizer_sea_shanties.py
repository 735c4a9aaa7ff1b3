import torch
from torch import nn, Tensor
import torch.nn.functional as F

# sLSTM cell of the xLSTM paper: exponential input gate, stabilised by the running maximum m.
# m starts at minus infinity, so that the first input gate is exactly exp(0).

class SLSTM(nn.Module):
    def __init__(self, n_in: int, n_hid: int) -> None:
        super().__init__()
        self.n_hid = n_hid
        self.wx = nn.Linear(n_in, 4 * n_hid)
        self.wh = nn.Linear(n_hid, 4 * n_hid, bias=False)
        with torch.no_grad():
            self.wx.bias[n_hid:2 * n_hid] = torch.linspace(2.0, 5.0, n_hid)

    def start(self, n: int) -> tuple[Tensor, ...]:
        zero = torch.zeros(n, self.n_hid)
        return zero, zero, zero, torch.full((n, self.n_hid), -float("inf"))

    def forward(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        h, c, n, m = state
        i, f, z, o = (self.wx(x) + self.wh(h)).chunk(4, dim=-1)
        log_f = F.logsigmoid(f)
        m_new = torch.maximum(log_f + m, i)
        keep = torch.exp(log_f + m - m_new)
        write = torch.exp(i - m_new)
        c = keep * c + write * torch.tanh(z)
        n = keep * n + write
        h = torch.sigmoid(o) * c / n
        return h, c, n, m_new

class Shanty(nn.Module):
    def __init__(self, vocab: int, width: int = 40) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.cell = SLSTM(width, width)
        self.read = nn.Linear(width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        state = self.cell.start(ids.shape[0])
        out = []
        for t in range(ids.shape[1]):
            state = self.cell(self.embed(ids[:, t]), state)
            out.append(self.read(state[0]))
        return torch.stack(out, 1)

SONG = """what shall we do with the weary caulker
what shall we do with the weary caulker
early on the quay
put him in the loft till the pitch is hotter
put him in the loft till the pitch is hotter
early on the quay
"""

def main() -> None:
    torch.manual_seed(1887)
    chars = sorted(set(SONG))
    ids = torch.tensor([chars.index(c) for c in SONG])
    model = Shanty(len(chars))
    optim = torch.optim.AdamW([
        {"params": model.embed.parameters(), "weight_decay": 0.0},
        {"params": model.cell.parameters(), "weight_decay": 0.02},
        {"params": model.read.parameters(), "lr": 2e-3},
    ], lr=6e-3)
    # triangular rate: up, down to zero, up again
    plan = torch.optim.lr_scheduler.LambdaLR(optim, lambda k: abs((k % 20) - 10) / 10)
    for k in range(45):
        length = 12 + 6 * (k % 3)
        at = torch.randint(0, len(ids) - length - 1, (8,))
        chunk = torch.stack([ids[a:a + length + 1] for a in at.tolist()])
        logits = model(chunk[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), chunk[:, 1:].flatten())
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        plan.step()
        print(f"{k + 1:2d} len={length} loss={loss.item():.9f}")
    print("final", sum(p.detach().abs().sum().item() for p in model.parameters()))

main()
