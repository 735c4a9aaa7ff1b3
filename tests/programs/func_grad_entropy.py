import torch
from torch.func import functional_call, grad_and_value

torch.manual_seed(14)
torch.set_num_threads(1)


class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.score = torch.nn.Linear(6, 4)
        self.experts = torch.nn.Parameter(torch.randn(4, 6) * 0.3)

    def forward(self, x, sharpness):
        p = torch.softmax(self.score(x) * sharpness, -1)
        entropy = -(p * p.log()).sum(-1).mean()
        return (p @ self.experts * x).sum(-1), entropy


gate = Gate()
params = dict(gate.named_parameters())


def objective(params, x, y, sharpness):
    pred, entropy = functional_call(gate, params, (x, sharpness))
    return (pred - y).pow(2).mean() - 0.01 * entropy


x_all = torch.randn(64, 6)
y_all = x_all[:, 0] - x_all[:, 3]
sharpness = 1.0
for step in range(1, 13):
    pick = torch.randint(0, 64, (16,))
    grads, value = grad_and_value(objective)(params, x_all[pick], y_all[pick], sharpness)
    params = {k: (v - 0.05 * grads[k]).detach() for k, v in params.items()}
    print(f"{step:3d} {value.item()} (sharpness {sharpness})")
    sharpness *= 3
print("params", sum(v.double().sum().item() for v in params.values()))
