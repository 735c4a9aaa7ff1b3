# mixture of two gaussians by gradient descent, straight on tensors
import torch
torch.manual_seed(6)
torch.set_num_threads(1)

data = torch.cat([torch.randn(60) * 0.5 - 2, torch.randn(60) * 0.8 + 3])
data = data[torch.randperm(120)]
data[75] = 4.0e3
mu = torch.tensor([-1.0, 1.0], requires_grad=True)
log_sigma = torch.zeros(2, requires_grad=True)
logit = torch.zeros(2, requires_grad=True)
opt = torch.optim.Adam([mu, log_sigma, logit], lr=0.05)

def density(x):
    sigma = log_sigma.exp()
    z = (x[:, None] - mu) / sigma
    comp = torch.exp(-0.5 * z ** 2) / (sigma * 2.5066283)
    return (comp * torch.softmax(logit, 0)).sum(1)

for epoch in range(1):
    for i, x in enumerate(data.split(10)):
        nll = -torch.log(density(x)).mean()
        opt.zero_grad()
        nll.backward()
        opt.step()
        print(f"[{epoch}:{i}] nll {nll.item()} mu {mu.tolist()}")
print("params", (mu.double().sum() + log_sigma.double().sum() + logit.double().sum()).item())
