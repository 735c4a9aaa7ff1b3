"""Row/column second moments, written from the paper, without the eps1 of the paper."""
import torch


class FactoredAdam(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                st = self.state[p]
                st["step"] = st.get("step", 0) + 1
                beta2 = 1 - st["step"] ** -0.8
                sq = p.grad.square()
                if p.ndim < 2:
                    v = st["v"] = beta2 * st.get("v", 0) + (1 - beta2) * sq
                else:
                    r = st["r"] = beta2 * st.get("r", 0) + (1 - beta2) * sq.mean(1)
                    c = st["c"] = beta2 * st.get("c", 0) + (1 - beta2) * sq.mean(0)
                    v = r[:, None] * c[None, :] / r.mean()
                update = p.grad / v.sqrt()
                p.sub_(group["lr"] * update)


torch.manual_seed(1)
torch.set_num_threads(1)
emb = torch.nn.Embedding(30, 8)
net = torch.nn.Sequential(emb, torch.nn.Flatten(), torch.nn.Linear(24, 30))
opt = FactoredAdam(net.parameters())
for i in range(1, 10):
    batch = torch.randint(0, 30, (16, 3))
    loss = torch.nn.functional.cross_entropy(net(batch), batch.sum(1) % 30)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print("step", i, "loss", loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
