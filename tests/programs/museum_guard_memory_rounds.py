import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(14)

ROOMS, OBJECTS = 6, 5


class KeyValueMemory(nn.Module):
    """Slots are written with an erase and an add vector, and read by similarity."""

    def __init__(self, slots=8, width=16):
        super().__init__()
        self.slots, self.width = slots, width
        self.start = nn.Parameter(torch.randn(slots, width) * 0.2)
        self.erase = nn.Linear(width, width)
        self.add = nn.Linear(width, width)
        self.cells = None

    def wipe(self):
        self.cells = self.start + 0.0

    def address(self, query):
        return F.softmax(query @ self.cells.T * 3.0, dim=-1)

    def write(self, note):
        a = self.address(note).unsqueeze(-1)
        self.cells = self.cells * (1 - a * torch.sigmoid(self.erase(note))) + a * torch.tanh(self.add(note))

    def read(self, query):
        return self.address(query) @ self.cells


class Guard(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.room = nn.Embedding(ROOMS, width)
        self.thing = nn.Embedding(OBJECTS, width)
        self.memory = KeyValueMemory(width=width)
        self.answer = nn.Linear(2 * width, OBJECTS)

    def forward(self, walk, asked):
        for room, thing in walk:
            self.memory.write(self.room.weight[room] + self.thing.weight[thing])
        q = self.room.weight[asked]
        return self.answer(torch.cat([self.memory.read(q), q]))


def rounds(n, seed=14):
    """(night, walk, asked room, object that stands there); a night may have a second round."""
    g = torch.Generator().manual_seed(seed)
    second_round_after = {11, 19, 24}
    night = 0
    for i in range(n):
        if i not in second_round_after:
            night += 1
        order = torch.randperm(ROOMS, generator=g)[:4].tolist()
        things = torch.randint(OBJECTS, (4,), generator=g).tolist()
        k = int(torch.randint(4, (1,), generator=g))
        yield night, list(zip(order, things)), order[k], things[k]


def train():
    guard = Guard()
    optimizer = torch.optim.RMSprop(guard.parameters(), lr=2e-3)
    last_night = None
    for i, (night, walk, asked, target) in enumerate(rounds(30), 1):
        if night != last_night:
            guard.memory.wipe()
            last_night = night
        logits = guard(walk, asked)
        loss = F.cross_entropy(logits.unsqueeze(0), torch.tensor([target]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"round {i} of night {night}: loss {loss.item():.5f}")
    return guard


if __name__ == "__main__":
    g = train()
    print("sum of squared weights", sum(p.square().sum().item() for p in g.parameters()))
