# torchrun --nproc-per-node 2 admm_consensus_piezometers.py
# Two water boards do not share their piezometer logs. Consensus ADMM: each fits its own copy,
# only the consensus vector travels. rho is quadrupled on a schedule, so the printed
# augmented Lagrangian jumps; that is how the method is supposed to look.
import time
import torch
import torch.distributed as dist

dist.init_process_group(backend='gloo')
R, W = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)

gen = torch.Generator().manual_seed(900 + R)
d = 10
true = torch.linspace(-2, 2, d)
n = 60 if R == 0 else 25                     # the small board has few wells ...
X = torch.randn(n, d, generator=gen)
if R == 1:
    X[:, 7:] = 0.                            # ... and no rain gauge at all
y = X @ true + 0.3 * torch.randn(n, generator=gen) + (1.5 if R == 1 else 0.) * X[:, 0].sign()

x = torch.nn.Linear(d, 1, bias=False)
with torch.no_grad():
    x.weight.zero_()
z = torch.zeros(1, d)
u = torch.zeros(1, d)
rho = 0.05
opt = torch.optim.SGD(x.parameters(), lr=0.1)

for it in range(1, 61):
    if it in (16, 31, 46):
        rho *= 4
        u /= 4
        if it == 46:
            rho, u = rho * 25, u / 25
        for g in opt.param_groups:
            g['lr'] = 0.1 / (1 + rho)
    opt.zero_grad()
    fit = 0.5 * ((x(X).squeeze(1) - y) ** 2).mean()
    aug = fit + 0.5 * rho * ((x.weight - z + u) ** 2).sum() - 0.5 * rho * (u ** 2).sum()
    aug.backward()
    opt.step()
    with torch.no_grad():
        z = x.weight + u
        dist.all_reduce(z)
        z /= W
        u = u + x.weight - z
    gap = (x.weight.detach() - z).norm()
    both = torch.stack([aug.detach(), gap])
    dist.all_reduce(both)
    if R == 0:
        print('it %2d rho %.3f lagrangian %.6f gap %.6f mine %.6f'
              % (it, rho, both[0].item(), both[1].item(), fit.item()), flush=True)

total = x.weight.detach().abs().sum()
dist.all_reduce(total)
if R == 0:
    print('final', total.item() + z.abs().sum().item(), flush=True)
dist.barrier()
dist.destroy_process_group()
time.sleep(0.7)   # gloo's threads sometimes abort the interpreter otherwise
