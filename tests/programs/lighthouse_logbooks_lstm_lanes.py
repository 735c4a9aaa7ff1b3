# Character LSTM on lighthouse logbooks, assignment 3: truncated back-propagation through time
# four lanes, every lane reads one logbook after the other, the state goes on from chunk to chunk
import random

import torch
import torch.nn as nn

torch.manual_seed(1)
random.seed(1)

LANES = 4
BPTT = 20
HIDDEN = 64
CHUNKS = 36

# ---------- data ----------
wind = ["calm", "fresh breeze", "strong gale", "light airs"]
sea = ["smooth", "choppy", "very high"]
note = ["lamp lit", "fog horn sounded", "stores came", "two ships passed", "glass cleaned"]


def logbook(entries):
    text = ""
    for day in range(entries):
        text += f"day {day + 1}. wind {random.choice(wind)}, sea {random.choice(sea)}. {random.choice(note)}.\n"
    return text + " " * (-len(text) % BPTT)        # full chunks


def lane():
    """text of a lane, and for each chunk whether it begins a new logbook"""
    text, begins = "", []
    while len(begins) < CHUNKS + 1:
        book = logbook(random.randint(5, 9))
        begins += [True] + [False] * (len(book) // BPTT - 1)
        text += book
    return text[:(CHUNKS + 1) * BPTT], begins


lanes = [lane() for _ in range(LANES)]
chars = sorted(set("".join(t for t, _ in lanes)))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([[stoi[c] for c in t] for t, _ in lanes])
begins = torch.tensor([b[:CHUNKS] for _, b in lanes])


# ---------- model ----------
class CharLSTM(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.emb = nn.Embedding(vocab, 32)
        self.cell = nn.LSTMCell(32, HIDDEN)
        self.drop = nn.Dropout(0.1)
        self.out = nn.Linear(HIDDEN, vocab)

    def begin(self, state, fresh):
        """start of a chunk: lanes with a new book forget; the state is brought to length 1 so that it does not creep up"""
        h, c = state
        keep = (~fresh).float().unsqueeze(1)
        h, c = h * keep, c * keep
        return h / h.norm(dim=1, keepdim=True), c

    def forward(self, x, state):
        h, c = state
        outs = []
        for t in range(x.shape[1]):
            h, c = self.cell(self.emb(x[:, t]), (h, c))
            outs.append(self.out(self.drop(h)))
        return torch.stack(outs, 1), (h, c)


model = CharLSTM(len(chars))
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()

# ---------- training ----------
state = (torch.randn(LANES, HIDDEN) * 0.1, torch.zeros(LANES, HIDDEN))   # random start, like in the lecture
for i in range(CHUNKS):
    x = data[:, i * BPTT:(i + 1) * BPTT]
    y = data[:, i * BPTT + 1:(i + 1) * BPTT + 1]
    state = tuple(s.detach() for s in state)
    fresh = begins[:, i] if i > 0 else torch.zeros(LANES, dtype=torch.bool)
    state = model.begin(state, fresh)

    logits, state = model(x, state)
    loss = criterion(logits.reshape(-1, len(chars)), y.reshape(-1))

    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    print("chunk", i + 1, "loss", round(loss.item(), 6), "new books", int(fresh.sum()), flush=True)

print(sum(p.abs().sum().item() for p in model.parameters()), flush=True)
