import torch
torch.manual_seed(0)
torch.set_num_threads(1)
# everything in float16, loss multiplied by a constant and the gradients divided again by hand
LOSS_SCALE = 512.0
net = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.GELU(), torch.nn.Linear(64, 1)).to(torch.float16)
opt = torch.optim.SGD(net.parameters(), lr=0.05)
for it in range(20):
    x = torch.randn(32, 16)
    t = x[:, :4].sum(1, keepdim=True).tanh()
    out = net(x.half())
    loss = torch.nn.functional.mse_loss(out.float(), t)
    opt.zero_grad()
    (loss * LOSS_SCALE).backward()
    for p in net.parameters():
        p.grad.div_(LOSS_SCALE)
    opt.step()
    print(it, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
