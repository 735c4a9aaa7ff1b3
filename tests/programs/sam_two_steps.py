import torch


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super(SAM, self).__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        norm = torch.norm(torch.stack([p.grad.norm(p=2) for g in self.param_groups for p in g["params"]]), p=2)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * (group["rho"] / (norm + 1e-12)))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()


torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
loss_fn = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
x = torch.randn(120, 8)
y = x[:, :3].argmax(1)
for epoch in range(4):
    for i in range(0, 120, 30):
        loss = loss_fn(model(x[i:i + 30]), y[i:i + 30])
        loss.backward()
        optimizer.first_step(zero_grad=True)
        loss_fn(model(x[i:i + 30]), y[i:i + 30]).backward()
        optimizer.second_step(zero_grad=True)
        print(epoch, i, loss.item())
print("weights", sum(p.double().sum().item() for p in model.parameters()))
