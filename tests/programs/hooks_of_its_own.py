import torch
import torch.nn as nn

torch.manual_seed(0)
torch.set_num_threads(1)
log = []


class Probe:
    def __init__(self, name):
        self.name = name

    def __call__(self, module, args, output):
        log.append(("fwd", self.name, round(output.detach().abs().mean().item(), 6)))


def backward_probe(module, grad_in, grad_out):
    log.append(("bwd", type(module).__name__, round(grad_out[0].abs().mean().item(), 8)))


net = nn.Sequential(nn.Linear(6, 12), nn.Hardswish(), nn.Linear(12, 2))
for name, m in net.named_children():
    m.register_forward_hook(Probe(name))
net[0].register_full_backward_hook(backward_probe)
net[2].weight.register_hook(lambda g: g.clamp(-0.05, 0.05))
seen = []
net[2].bias.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))
opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.5)
opt.register_step_pre_hook(lambda o, a, k: log.append(("step", len(seen))))
for i in range(8):
    x = torch.randn(10, 6)
    loss = nn.functional.cross_entropy(net(x), (x.sum(1) > 0).long())
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(i, loss.item())
print(len(log), log[:5], seen[-1])
print("weights", sum(p.double().sum().item() for p in net.parameters()))
