#!/usr/bin/env python
"""Second-order MAML over kitchen scales: each scale is a task, a few weighings calibrate it."""
import argparse

import torch


def init_params(width, gen):
    return [
        (torch.randn(1, width, generator=gen) * 0.7).requires_grad_(),
        (torch.randn(width, width, generator=gen) * width ** -0.5).requires_grad_(),
        (torch.randn(width, 1, generator=gen) * width ** -0.5).requires_grad_(),
    ]


def reading(params, x):
    # an empty pan reads zero by construction: odd activations, no offsets
    h = torch.tanh(x @ params[0])
    h = torch.tanh(h @ params[1])
    return h @ params[2]


def between_l1_and_l2(pred, target):
    return (pred - target).abs().pow(1.5).mean()


def adapt(params, x, y, inner_lr, inner_steps):
    fast = params
    for _ in range(inner_steps):
        inner = between_l1_and_l2(reading(fast, x), y)
        grads = torch.autograd.grad(inner, fast, create_graph=True)
        fast = [w - inner_lr * g for w, g in zip(fast, grads)]
    return fast


def sample_scale(gen, shots):
    stiffness = 0.4 + 0.8 * torch.rand(1, generator=gen)
    fatigue = 0.3 * torch.rand(1, generator=gen)
    grams = torch.randint(0, 501, (2 * shots, 1), generator=gen)
    load = grams / 500.0
    y = stiffness * load - fatigue * load ** 3
    return load[:shots], y[:shots], load[shots:], y[shots:]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--meta-steps", type=int, default=35)
    ap.add_argument("--tasks", type=int, default=4)
    ap.add_argument("--shots", type=int, default=5)
    ap.add_argument("--seed", type=int, default=6)
    args = ap.parse_args()

    gen = torch.Generator().manual_seed(args.seed)
    params = init_params(16, gen)
    meta = torch.optim.Adam(params, lr=5e-3)
    for it in range(1, args.meta_steps + 1):
        meta.zero_grad()
        outer = 0.0
        for _ in range(args.tasks):
            xs, ys, xq, yq = sample_scale(gen, args.shots)
            fast = adapt(params, xs, ys, inner_lr=0.1, inner_steps=2)
            outer = outer + between_l1_and_l2(reading(fast, xq), yq) / args.tasks
        outer.backward()
        meta.step()
        print(f"[{it:03d}] meta loss {outer.item():.6e}")
    print("final |weights| =", sum(w.detach().abs().sum() for w in params).item())


if __name__ == "__main__":
    main()
