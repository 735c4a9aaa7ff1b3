"""Two independent trainings in two spawned processes (a little hyper-parameter search)."""
import torch
import torch.multiprocessing as mp


def train(rank, lr, results):
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    net = torch.nn.Linear(5, 1)
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(10):
        x = torch.randn(32, 5)
        loss = (net(x).squeeze(1) - x.sum(1)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    results[rank] = (lr, loss.item(), net.weight.double().sum().item())


def main():
    ctx = mp.get_context("spawn")
    with ctx.Manager() as manager:
        results = manager.dict()
        procs = [ctx.Process(target=train, args=(r, lr, results)) for r, lr in enumerate((0.1, 0.02))]
        for p in procs:
            p.start()
        for p in procs:
            p.join()
            assert p.exitcode == 0
        for r in sorted(results.keys()):
            print(r, *results[r])


if __name__ == "__main__":
    main()
