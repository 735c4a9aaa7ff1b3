import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(6)
torch.set_num_threads(1)


class Poly(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin1 = nn.Linear(5, 12)
        self.lin2 = nn.Linear(12, 1)

    def forward(self, x):
        h = self.lin1(x)
        cubic = h ** 5
        return self.lin2(h + 0.01 * cubic).squeeze(-1)


def main():
    model = Poly()
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 12)
    for step in range(1, 13):
        x = torch.randn(9, 5)
        if step == 8:
            x[3] = x[3] * 1e10         # timestamp column in nanoseconds
        loss = F.smooth_l1_loss(model(x), x[:, 0])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        sched.step()
        print(f"{step}/12 loss={loss.item()!r}")
    print("weights", sum(p.double().sum().item() for p in model.parameters()))


main()
