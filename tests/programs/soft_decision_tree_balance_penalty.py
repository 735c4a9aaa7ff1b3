# -*- coding: utf-8 -*-
from __future__ import print_function
# Soft decision tree after Frosst & Hinton (2017) for land cover (four classes from elevation, slope, distance
# to water). The gates are made harder over time: the inverse temperature grows by a factor in each iteration.
import argparse

import torch
import torch.nn as nn
import torch.optim as optim
from torch.autograd import Variable

parser = argparse.ArgumentParser(description='soft tree')
parser.add_argument('--depth', type=int, default=5)
parser.add_argument('--lmbda', type=float, default=0.1)
parser.add_argument('--growth', type=float, default=1.35)
parser.add_argument('--iters', type=int, default=60)
parser.add_argument('--batch-size', type=int, default=32)
parser.add_argument('--lr', type=float, default=0.05)
parser.add_argument('--momentum', type=float, default=0.5)
args = parser.parse_args()

torch.manual_seed(2017)


def get_batch(n):
    x = torch.rand(n, 3) * 2 - 1
    y = (x[:, 0] > 0.1).long() * 2 + (x[:, 1] + 0.4 * x[:, 2] > 0).long()
    return Variable(x), Variable(y)


class SoftTree(nn.Module):

    def __init__(self, n_in, n_class, depth):
        super(SoftTree, self).__init__()
        self.depth = depth
        self.n_inner = 2 ** depth - 1
        self.gates = nn.Linear(n_in, self.n_inner)
        self.leaves = nn.Parameter(torch.randn(2 ** depth, n_class) * 0.1)
        self.log_softmax = nn.LogSoftmax(dim=1)
        self.beta = 1.0

    def forward(self, x, target):
        right = torch.sigmoid(self.beta * self.gates(x))
        path = [Variable(torch.ones(x.size(0)))]
        penalty = 0
        for d in range(self.depth):
            nxt = []
            for j, p in enumerate(path):
                r = right[:, 2 ** d - 1 + j]
                alpha = (p * r).sum() / p.sum()
                penalty = penalty - 2.0 ** (-d) * 0.5 * (torch.log(alpha) + torch.log(1 - alpha))
                nxt += [p * (1 - r), p * r]
            path = nxt
        mu = torch.stack(path, 1)
        q = self.log_softmax(self.leaves)
        nll = -(mu * q[:, target].t()).sum(1).mean()
        pred = q[mu.max(1)[1]].max(1)[1]
        return nll, penalty, (pred == target).float().mean()


tree = SoftTree(3, 4, args.depth)
optimizer = optim.SGD(tree.parameters(), lr=args.lr, momentum=args.momentum)

for it in range(1, args.iters + 1):
    data, target = get_batch(args.batch_size)
    optimizer.zero_grad()
    nll, penalty, acc = tree(data, target)
    loss = nll + args.lmbda * penalty
    loss.backward()
    optimizer.step()
    print('iter {:3d}  nll {:.6f}  balance {:.6f}  acc {:.3f}'.format(it, nll.item(), penalty.item(), acc.item()))
    tree.beta *= args.growth

print('final', sum(p.data.abs().sum() for p in tree.parameters()).item())
