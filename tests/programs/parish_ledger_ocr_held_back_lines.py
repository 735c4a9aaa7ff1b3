# Reading lines of a parish ledger: a small convolutional net and CTC.
# Lines that are too narrow for their transcript are scanned again at double width later.
from collections import deque
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(1743)
LETTERS = "aenrst"
glyphs = (torch.rand(len(LETTERS), 8, 4) > 0.5).float()


def scan(text, stretch=1):
    strip = torch.cat([glyphs[LETTERS.index(c)] for c in text], dim=1)
    strip = strip.repeat_interleave(stretch, dim=1)
    return strip + 0.1 * torch.randn_like(strip)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Conv2d(1, 12, (8, 4), stride=(8, 4))
        self.b = nn.Conv1d(12, 16, 3, padding=1)
        self.out = nn.Conv1d(16, len(LETTERS) + 1, 1)

    def forward(self, page):
        h = torch.relu(self.a(page)).squeeze(2)
        h = torch.relu(self.b(h))
        return self.out(h).permute(2, 0, 1).log_softmax(-1)      # time, line, letter


def costs(reader, lines):
    scans = [s for s, _ in lines]
    widest = max(s.shape[1] for s in scans)
    page = torch.stack([F.pad(s, (0, widest - s.shape[1])) for s in scans]).unsqueeze(1)
    targets = torch.tensor([LETTERS.index(c) + 1 for _, t in lines for c in t])
    return F.ctc_loss(reader(page), targets,
                      torch.tensor([s.shape[1] // 4 for s in scans]),
                      torch.tensor([len(t) for _, t in lines]), reduction="none")


first_pages = ["annas", "esseeas", "nanette", "attest", "rennet", "assess", "tatters", "sennas"]
others = ["senta", "rasen", "arent", "narste", "anna", "stern", "ernst", "tanne", "raten", "essen",
          "nest", "arsen", "rest", "satt", "nase", "ersten", "rente", "sanna", "astern", "raster"]
pile = deque(first_pages)
for i in range(200):
    pile.append(others[int(torch.randint(len(others), (1,)))])
again = deque()

reader = Reader()
optim = torch.optim.AdamW(reader.parameters(), lr=0.02, weight_decay=1e-3)
taken = 0
for sheet in range(34):
    lines = [(t_scan, t) for t in [pile.popleft() for _ in range(4)] for t_scan in [scan(t)]]
    if sheet % 3 == 2:
        while again and len(lines) < 7:
            text = again.popleft()
            lines.append((scan(text, 2), text))
    with torch.no_grad():
        trial = costs(reader, lines)
    readable = [l for l, c in zip(lines, trial) if c != float("inf")]
    again.extend(l[1] for l, c in zip(lines, trial) if c == float("inf"))
    if not readable:
        print(f"sheet {sheet:2d} worst line {trial.max():.3f}, all {len(lines)} go back to the scanner")
        continue
    loss = costs(reader, readable).mean()
    optim.zero_grad()
    loss.backward()
    optim.step()
    taken += 1
    print(f"sheet {sheet:2d} worst line {trial.max():.3f}, mean of {len(readable)} lines {loss.item():.4f}")

print("waiting", len(again), "used sheets", taken)
print("norm of weights squared:", f"{sum((p ** 2).sum().item() for p in reader.parameters()):.5f}")
