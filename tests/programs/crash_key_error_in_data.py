import json

import torch
from torch.utils.data import DataLoader, Dataset

LINES = [json.dumps({"text": "x" * (i % 5 + 1), "label": i % 2}) for i in range(30)]
LINES[17] = json.dumps({"txt": "xxx", "label": 1})


class JsonLines(Dataset):
    def __init__(self, lines):
        self.rows = [json.loads(line) for line in lines]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        return torch.tensor([len(row["text"]), 1.0]), torch.tensor(row["label"])


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for n, (x, y) in enumerate(DataLoader(JsonLines(LINES), batch_size=5)):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(n + 1, loss.item(), flush=True)
