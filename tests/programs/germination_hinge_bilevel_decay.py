"""Which seeds germinate?  A linear rule with one weight decay per group of features, and the decays are
tuned by implicit differentiation: inner problem logistic + ridge, outer problem hinge loss on held-out trays.

    d val / d log_decay = - q' d2f/dw dlog_decay     with     (d2f/dw2) q = d val / dw
"""
import torch
from torch.func import grad, jvp, vjp

torch.manual_seed(19)
torch.set_default_dtype(torch.float64)

GROUPS = torch.tensor([0, 0, 0, 1, 1, 2, 2, 2])      # seed coat, moisture, provenance
OUTER, INNER = 40, 60


def trays(n, seed):
    g = torch.Generator().manual_seed(seed)
    truth = torch.tensor([1.5, -1.0, 0.7, 2.0, -1.5, 0.1, 0.0, -0.1])
    x = torch.randn(6 * n, 8, generator=g)
    score = x @ truth
    keep = score.abs() > 1.8           # clear cases only, the doubtful ones are sown again
    x, score = x[keep][:n], score[keep][:n]
    return x, score.sign()


class InnerProblem:
    def __init__(self, x, y):
        self.x, self.y = x, y

    def value(self, w, log_decay):
        fit = torch.nn.functional.softplus(-self.y * (self.x @ w)).mean()
        return fit + 0.5 * (log_decay.exp()[GROUPS] * w * w).sum()

    def gradient(self, w, log_decay):
        return grad(self.value)(w, log_decay)

    def hessian_times(self, w, log_decay, v):
        return jvp(lambda u: self.gradient(u, log_decay), (w,), (v,))[1]

    def solve(self, w, log_decay, rate=0.5):
        for _ in range(INNER):
            w = w - rate * self.gradient(w, log_decay)
        return w


def conjugate_gradient(matvec, b, iters=8):
    q = torch.zeros_like(b)
    r, p = b.clone(), b.clone()
    rs = r @ r
    for _ in range(iters):
        ap = matvec(p)
        alpha = rs / (p @ ap)
        q, r = q + alpha * p, r - alpha * ap
        new = r @ r
        if new < 1e-20:
            break
        p, rs = r + (new / rs) * p, new
    return q


def validation(w, x, y):
    return torch.relu(1 - y * (x @ w)).mean()


def main():
    inner = InnerProblem(*trays(60, 1))
    xv, yv = trays(24, 2)
    log_decay = torch.nn.Parameter(torch.full((3,), 0.0))
    opt = torch.optim.Adam([log_decay], lr=0.25)
    w = torch.zeros(8)
    for k in range(1, OUTER + 1):
        with torch.no_grad():
            ld = log_decay.detach()
            w = inner.solve(w, ld)
        loss = validation(w, xv, yv)
        outer_grad = grad(validation)(w, xv, yv)
        q = conjugate_gradient(lambda v: inner.hessian_times(w, ld, v), outer_grad)
        _, pull = vjp(lambda d: inner.gradient(w, d), ld)
        opt.zero_grad()
        log_decay.grad = -pull(q)[0]
        opt.step()
        wrong = int((yv * (xv @ w) <= 0).sum())
        print(f"outer {k:2d}  hinge {loss.item():.9f}  wrong {wrong}", flush=True)
    print(f"{log_decay.detach().abs().sum().item() + w.abs().sum().item():.8f}", flush=True)


if __name__ == "__main__":
    main()
