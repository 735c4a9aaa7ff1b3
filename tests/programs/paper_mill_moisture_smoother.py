# Moisture of the web at the reel, paper machine no. 3.
# Local level plus slope, Kalman filter, RTS smoother and EM, written out by hand
# as I did it in Fortran in 1987.  R is re-estimated in closed form, the two
# process variances by one gradient move per round (generalised EM).
#
# The scanner is lifted off the sheet at every break; the logger then writes NaN.
import math
import torch

torch.manual_seed(1987)
torch.set_default_dtype(torch.float64)
T, REELS, ROUNDS = 36, 3, 30
F = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
H = torch.tensor([[1.0, 0.0]])
I2 = torch.eye(2)


def make_reel(k):
    """true level, and the readings with gaps; reel 2 was never scanned in its first third"""
    x = torch.tensor([6.5 + 0.2 * k, 0.01])
    ys = []
    for t in range(T):
        x = F @ x + torch.randn(2) * torch.tensor([0.02, 0.004])
        y = x[0] + 0.05 * torch.randn(())
        ys.append(y)
    y = torch.stack(ys)
    gap = torch.rand(T) < 0.15
    if k == 2:
        gap[: T // 3] = True
    y[gap] = float("nan")
    return y


def filter_and_smooth(y, q, r):
    """returns smoothed mean, covariance, lag-one covariance and the log-likelihood"""
    Q = torch.diag(q)
    x, P = torch.tensor([6.5, 0.0]), 4.0 * torch.eye(2)
    xp, Pp, xf, Pf = [], [], [], []
    ll = torch.zeros(())
    for t in range(T):
        x, P = F @ x, F @ P @ F.T + Q
        xp.append(x), Pp.append(P)
        if not torch.isnan(y[t]):
            v = y[t] - (H @ x)[0]
            s = (H @ P @ H.T)[0, 0] + r
            K = (P @ H.T / s)[:, 0]
            x = x + K * v
            P = (I2 - torch.outer(K, H[0])) @ P
            ll = ll - 0.5 * (torch.log(2 * math.pi * s) + v * v / s)
        xf.append(x), Pf.append(P)
    xs, Ps, lag = [None] * T, [None] * T, [None] * T
    xs[-1], Ps[-1] = xf[-1], Pf[-1]
    for t in range(T - 2, -1, -1):
        J = Pf[t] @ F.T @ torch.linalg.inv(Pp[t + 1])
        xs[t] = xf[t] + J @ (xs[t + 1] - xp[t + 1])
        Ps[t] = Pf[t] + J @ (Ps[t + 1] - Pp[t + 1]) @ J.T
        lag[t + 1] = Ps[t + 1] @ J.T
    return xs, Ps, lag, ll


def expected_process_squares(xs, Ps, lag):
    """E[(x_t - F x_{t-1})(...)'] summed over t, diagonal only"""
    S = torch.zeros(2, 2)
    for t in range(1, T):
        d = xs[t] - F @ xs[t - 1]
        S = S + torch.outer(d, d) + Ps[t] - lag[t] @ F.T - F @ lag[t].T + F @ Ps[t - 1] @ F.T
    return torch.diagonal(S)


def main():
    reels = [make_reel(k) for k in range(REELS)]
    print("plain means of the logger files:", " ".join(f"{y.mean().item():.4f}" for y in reels), flush=True)
    log_q = torch.nn.Parameter(torch.log(torch.tensor([1e-2, 1e-3])))
    r = torch.tensor(0.04)
    opt = torch.optim.Adam([log_q], lr=0.12)
    for it in range(1, ROUNDS + 1):
        total, num, cnt = torch.zeros(()), torch.zeros(()), 0
        sq = torch.zeros(2)
        with torch.no_grad():                       # E
            for y in reels:
                xs, Ps, lag, ll = filter_and_smooth(y, log_q.exp(), r)
                total = total + ll
                sq = sq + expected_process_squares(xs, Ps, lag)
                lev = torch.stack([x[0] for x in xs])
                var = torch.stack([P[0, 0] for P in Ps])
                res = (y - lev) ** 2 + var          # NaN in the gaps
                num = num + torch.nansum(res)
                cnt += int((~torch.isnan(res)).sum())
        n = REELS * (T - 1)                         # M, the gradient part
        loss = 0.5 * (n * log_q + sq / log_q.exp()).sum() / n
        opt.zero_grad()
        loss.backward()
        opt.step()
        r = num / cnt                               # M, the closed part
        print(f"round {it:2d}  -Q {loss.item():.8f}  logL {total.item():.6f}  R {r.item():.8f}", flush=True)
    print("q", " ".join(f"{v:.8f}" for v in log_q.exp().tolist()), flush=True)


main()
