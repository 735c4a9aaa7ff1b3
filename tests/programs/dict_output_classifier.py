"""Intent classifier on synthetic bags of words. The model computes its own loss and hands back a dict."""
import random

import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def set_seed(seed: int):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


class IntentModel(nn.Module):
    def __init__(self, vocab_size=200, hidden=32, num_intents=6, dropout=0.1):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab_size, hidden, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(hidden, hidden), nn.GELU(), nn.Dropout(dropout), nn.Linear(hidden, num_intents))
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, batch):
        tokens, labels = batch
        logits = self.mlp(self.bag(tokens))
        out = {"logits": logits, "pred": logits.argmax(-1)}
        if labels is not None:
            out["losses"] = {"intent": self.criterion(logits, labels)}
        return out


if __name__ == "__main__":
    torch.set_num_threads(1)
    set_seed(1234)
    labels = torch.randint(0, 6, (240,))
    words = torch.randint(0, 200, (240, 9))
    words[:, 0] = labels * 7          # a keyword gives the intent away
    loader = DataLoader(TensorDataset(words, labels), batch_size=24, shuffle=True)

    model = IntentModel()
    optim = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01)
    for epoch in range(3):
        for batch in loader:
            optim.zero_grad()
            result = model(batch)
            total = sum(result["losses"].values())
            total.backward()
            optim.step()
            print(f"epoch {epoch} loss {total.item()!r}")
    print("done", sum(p.double().abs().sum().item() for p in model.parameters()))
