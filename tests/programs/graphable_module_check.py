import torch


def make_graphed(module, sample):
    """the checks of torch.cuda.make_graphed_callables, with an ordinary call behind them"""
    for m in module.modules():
        assert len(m._backward_hooks) == 0 and len(m._forward_hooks) == 0 and len(m._forward_pre_hooks) == 0, (
            "Modules must not have hooks registered at the time they are passed.")
    assert all(b.requires_grad is False for b in module.buffers())
    module(sample)
    original = module.forward

    def graphed(*args):
        assert tuple(args[0].shape) == tuple(sample.shape)
        return original(*args)

    return graphed


torch.manual_seed(7)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(5, 20), torch.nn.ReLU(), torch.nn.Linear(20, 5))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
warm = torch.nn.functional.mse_loss(net(torch.zeros(4, 5)), torch.zeros(4, 5))
warm.backward()
opt.step()
opt.zero_grad()
print("warm-up", warm.item())
run = make_graphed(net, torch.zeros(4, 5))
for i in range(10):
    x = torch.randn(4, 5)
    loss = torch.nn.functional.mse_loss(run(x), x)
    loss.backward()
    opt.step()
    opt.zero_grad()
    print(i, loss.item())
print("weights", sum(p.double().sum().item() for p in net.parameters()))
