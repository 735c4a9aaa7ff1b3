import torch
from torch.optim.optimizer import Optimizer


class Lion(Optimizer):
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        if lr <= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        super().__init__(params, dict(lr=lr, betas=betas, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                p.data.mul_(1 - group["lr"] * group["weight_decay"])
                state = self.state[p]
                if len(state) == 0:
                    state["exp_avg"] = torch.zeros_like(p)
                m, (b1, b2) = state["exp_avg"], group["betas"]
                p.add_((m * b1 + p.grad * (1 - b1)).sign_(), alpha=-group["lr"])
                m.mul_(b2).add_(p.grad, alpha=1 - b2)
        return loss


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Mish(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
opt = Lion(model.parameters(), lr=3e-3, weight_decay=0.1)
x = torch.randn(200, 16)
y = (x[:, 0] * x[:, 1] > 0).float()
for step in range(25):
    b = torch.randint(0, 200, (32,))
    loss = torch.nn.functional.binary_cross_entropy_with_logits(model(x[b]).squeeze(-1), y[b])
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(step, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
