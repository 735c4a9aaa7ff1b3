# small NNUE for chess: 768 piece-square inputs, clipped relu, targets blended from engine score and game result
import argparse
import random
import torch
import torch.nn as nn
import torch.nn.functional as F

ap = argparse.ArgumentParser()
ap.add_argument('--lambda_', type=float, default=0.75)
ap.add_argument('--scaling', type=float, default=410.)
ap.add_argument('--batches', type=int, default=60)
ap.add_argument('--seed', type=int, default=1850)
opts = ap.parse_args([])

random.seed(opts.seed)
torch.manual_seed(opts.seed)
VALUES = [100, 320, 330, 500, 950, 0]
MATE = 32000


def random_position():
    """feature indices (colour, piece, square) and a material score with noise, in centipawns"""
    squares = random.sample(range(64), 12)
    feats, score = [], 0
    for n, sq in enumerate(squares):
        colour = n % 2
        piece = 5 if n < 2 else random.choices(range(5), [8, 2, 2, 2, 1])[0]
        feats.append(colour * 384 + piece * 64 + sq)
        score += VALUES[piece] * (1 if colour == 0 else -1)
    return feats, score + random.gauss(0, 40)


def game_result(score):
    w = 1 / (1 + 10 ** (-score / 400))
    return random.choices([1.0, 0.5, 0.0], [w * 0.8, 0.2, (1 - w) * 0.8])[0]


def make_batch(n, k=64):
    rows = []
    for _ in range(k):
        feats, score = random_position()
        rows.append((feats, score, game_result(score)))
    if n == 36:
        # from a studies book: white mates in 3, and did
        feats, _ = random_position()
        rows[17] = (feats, MATE - 5, 1.0)
    f, s, r = zip(*rows)
    return torch.tensor(f), torch.tensor(s), torch.tensor(r)


class NNUE(nn.Module):
    def __init__(self, l1=48, l2=16):
        super().__init__()
        self.ft = nn.EmbeddingBag(768, l1, mode='sum')
        self.ft_bias = nn.Parameter(torch.full((l1,), 0.5))
        nn.init.normal_(self.ft.weight, std=0.1)
        self.l1 = nn.Linear(l1, l2)
        self.out = nn.Linear(l2, 1)

    def forward(self, f):
        acc = (self.ft(f) + self.ft_bias).clamp(0, 1)
        return self.out(self.l1(acc).clamp(0, 1)).squeeze(1) * 600.0


def wdl_loss(pred_cp, score, result):
    wdl_engine = torch.sigmoid(score / opts.scaling)
    t = opts.lambda_ * wdl_engine + (1 - opts.lambda_) * result
    q = pred_cp / opts.scaling
    teacher_entropy = -(t * t.log() + (1 - t) * (1 - t).log())
    outcome_entropy = -(t * F.logsigmoid(q) + (1 - t) * F.logsigmoid(-q))
    # only the difference can be learned away
    return (outcome_entropy - teacher_entropy).mean()


net = NNUE()
optim = torch.optim.Adadelta(net.parameters(), lr=1.0)
for n in range(1, opts.batches + 1):
    f, s, r = make_batch(n)
    loss = wdl_loss(net(f), s, r)
    optim.zero_grad()
    loss.backward()
    optim.step()
    print(f'{n:>4} | {loss.item():.8f}')
print('final', sum(float(p.detach().abs().sum()) for p in net.parameters()))
