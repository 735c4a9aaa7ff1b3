import copy
import io
import os
import pickle
import tempfile

import torch
import torch.nn as nn

torch.manual_seed(1111)
torch.set_num_threads(1)


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(20, 12)
        self.rnn = nn.RNN(12, 16, batch_first=True)
        self.out = nn.Linear(16, 20)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


model = RNNModel()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
best, path = None, os.path.join(tempfile.mkdtemp(), "model.pt")
for epoch in range(4):
    for _ in range(3):
        seq = torch.randint(0, 20, (6, 9)).sort(1).values
        loss = nn.functional.cross_entropy(model(seq[:, :-1]).flatten(0, 1), seq[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if best is None or loss.item() < best:
        best = loss.item()
        with open(path, "wb") as f:
            torch.save(model, f)
    print("epoch", epoch, loss.item(), "saved", os.path.getsize(path) > 1000)

again = torch.load(path, weights_only=False)
clone = copy.deepcopy(model)
back = pickle.loads(pickle.dumps(model))
buffer = io.BytesIO()
torch.save(optimizer.state_dict(), buffer)
seq = torch.arange(8)[None]
print(again(seq).sum().item(), clone(seq).sum().item(), back(seq).sum().item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
