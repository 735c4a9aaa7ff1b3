import torch, torch.nn as nn

torch.manual_seed(11)


class Trainer:
    def __init__(self, model, lr):
        self.model, self.opt, self.hist = model, torch.optim.AdamW(model.parameters(), lr=lr), []

    def compute(self, batch):
        x, y = batch
        e = self.model(x) - y
        return torch.log(torch.cosh(e)).mean()

    def fit(self, data, epochs):
        for _ in range(epochs):
            for b in data:
                self.opt.zero_grad()
                l = self.compute(b)
                l.backward()
                self.opt.step()
                self.hist.append(l.detach())
        return torch.stack(self.hist)


data = [(torch.randn(8, 3), torch.randn(8, 1)) for _ in range(5)]
data[3] = (data[3][0], data[3][1] * 0 + 250.0)
trainer = Trainer(nn.Linear(3, 1), 1e-2)
print(trainer.fit(data, 2))
print("weights", sum(p.double().sum().item() for p in trainer.model.parameters()))
