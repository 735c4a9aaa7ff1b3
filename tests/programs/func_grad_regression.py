import torch
from torch.func import functional_call, grad_and_value, vmap

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(3, 16), torch.nn.Softplus(), torch.nn.Linear(16, 1))
params = {k: v.detach().clone() for k, v in net.named_parameters()}
velocity = {k: torch.zeros_like(v) for k, v in params.items()}


def loss_fn(params, x, y):
    return torch.nn.functional.huber_loss(functional_call(net, params, (x,)), y)


step_fn = grad_and_value(loss_fn)
per_sample = vmap(lambda p, x, y: loss_fn(p, x[None], y[None]), in_dims=(None, 0, 0))
for i in range(15):
    x = torch.randn(20, 3)
    y = x.prod(1, keepdim=True)
    grads, loss = step_fn(params, x, y)
    for k in params:
        velocity[k] = 0.9 * velocity[k] + grads[k]
        params[k] = params[k] - 0.02 * velocity[k]
    if i % 5 == 0:
        print("hardest sample", per_sample(params, x, y).argmax().item())
    print(i, loss.item())
print("end", sum(v.double().sum().item() for v in params.values()))
