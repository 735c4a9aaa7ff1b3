# no torch.optim anywhere: the tutorial way
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
x = torch.linspace(-3.14, 3.14, 400)
y = torch.sin(x)
a, b, c, d = (torch.randn((), requires_grad=True) for _ in range(4))
learning_rate = 0.004
for t in range(60):
    y_pred = a + b * x + c * x ** 2 + d * x ** 3
    loss = (y_pred - y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for w in (a, b, c, d):
            w -= learning_rate * w.grad
            w.grad = None
    if t % 10 == 9:
        print(t, loss.item())
print(f"y = {a.item()} + {b.item()} x + {c.item()} x^2 + {d.item()} x^3")
