"""Sieve curves of gravel: the foreman trains a mean model, forked crews refine it on their own
pit, and a spawn pool scores the result. Crews answer over pipes, weights as raw bytes."""
import multiprocessing as mp
import os

import numpy as np
import torch


def build():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.ELU(), torch.nn.Linear(10, 4))


def pit(seed, n=64):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    mix = torch.softmax(torch.stack([x[:, 0], x[:, 1] * seed / 3, x[:, 2], -x[:, 3]], 1), 1)
    return x, mix


def fit(net, seed, steps, lr, say=None):
    """KL between sieve fractions; returns the last loss"""
    opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    x, mix = pit(seed)
    for i in range(steps):
        loss = torch.nn.functional.kl_div(torch.log_softmax(net(x), 1), mix, reduction="batchmean")
        opt.zero_grad()
        loss.backward()
        opt.step()
        if say:
            say(f"foreman {i + 1:2d} kl {loss.item():.7f}")
    return loss.item()


def flat(net):
    return np.concatenate([p.detach().numpy().ravel() for p in net.parameters()])


def crew(net, seed):
    """fork; the child trains and leaves with os._exit, so no atexit of the parent runs in it"""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(r)
            last = fit(net, seed, steps=8, lr=0.1)
            with os.fdopen(w, "wb") as f:
                f.write(np.float64(last).tobytes() + flat(net).tobytes())
            code = 40 + seed
        finally:
            os._exit(code)
    os.close(w)
    with os.fdopen(r, "rb") as f:
        raw = f.read()
    _, status = os.waitpid(pid, 0)
    return np.frombuffer(raw[:8], np.float64)[0], np.frombuffer(raw[8:], np.float32), os.waitstatus_to_exitcode(status)


def score(args):
    vec, seed = args
    torch.set_num_threads(1)
    net = build()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(vec.copy()), net.parameters())
    with torch.no_grad():
        x, mix = pit(seed)
        return round(float((torch.softmax(net(x), 1) - mix).abs().mean()), 6)


def main():
    torch.set_num_threads(1)
    net = build()
    fit(net, 1, steps=20, lr=0.2, say=lambda s: print(s, flush=True))
    before = flat(net).copy()
    answers = [crew(net, s) for s in (2, 3)]
    for kl, vec, code in answers:
        print(f"crew kl {kl:.7f} exit {code} size {vec.size} sum {vec.astype(np.float64).sum():.7f}", flush=True)
    print("parent untouched", bool((flat(net) == before).all()), "children left", len(mp.active_children()), flush=True)
    with mp.get_context("spawn").Pool(1) as pool:
        print("scores", pool.map(score, [(v, 2 + i) for i, (_, v, _) in enumerate(answers)]), flush=True)
    torch.nn.utils.vector_to_parameters(torch.from_numpy(np.mean([v for _, v, _ in answers], 0)), net.parameters())
    print(f"averaged weights {flat(net).astype(np.float64).sum():.7f}")


if __name__ == "__main__":
    main()
