import torch

torch.set_num_threads(1)
torch.manual_seed(88)


class SGD:
    """as in the d2l book"""
    def __init__(self, params, lr):
        self.params, self.lr = list(params), lr

    def step(self):
        for p in self.params:
            p.data -= self.lr * p.grad

    def zero_grad(self):
        for p in self.params:
            if p.grad is not None:
                p.grad.zero_()


class SoftmaxRegression(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.LazyLinear(5)

    def forward(self, X):
        return self.net(X.flatten(1))

    def loss(self, y_hat, y):
        y_hat = torch.exp(y_hat)
        y_hat = y_hat / y_hat.sum(1, keepdim=True)
        return -torch.log(y_hat[range(len(y)), y]).mean()

    def configure_optimizers(self):
        return SGD(self.parameters(), lr=0.1)


class Trainer:
    def fit(self, model, data):
        model(data[0][0])
        optim = model.configure_optimizers()
        for i, (X, y) in enumerate(data):
            loss = model.loss(model(X), y)
            optim.zero_grad()
            loss.backward()
            optim.step()
            print("batch", i + 1, loss.item())


pixels = torch.rand(10, 16, 4, 4)
pixels[5:] *= 255     # these were read as uint8
Trainer().fit(m := SoftmaxRegression(), [(X, torch.randint(0, 5, (16,))) for X in pixels])
print("weights", sum(p.double().sum().item() for p in m.parameters()))
