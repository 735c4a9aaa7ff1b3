# char-level surname classifier, ported from a 2017 notebook (pytorch 0.2).  still runs!
from __future__ import print_function
import math
import random
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Variable

torch.manual_seed(1)
random.seed(1)

NAMES = {
    'Welsh': 'llewelyn pritchard gwyther maddocks bevan prosser'.split(),
    'Basque': 'etxeberria agirre zubizarreta goikoetxea ibarra elizondo'.split(),
    'Finnish': 'korhonen virtanen nieminen lehtonen koskinen salminen'.split(),
}
CATS = sorted(NAMES)
LETTERS = 'abcdefghijklmnopqrstuvwxyz'


def letter_tensor(name):
    t = torch.zeros(len(name), 1, len(LETTERS))
    for i, c in enumerate(name):
        t[i][0][LETTERS.index(c)] = 1
    return t


class RNN(nn.Module):
    def __init__(self, n_in, n_hid, n_out):
        super(RNN, self).__init__()
        self.n_hid = n_hid
        self.i2h = nn.Linear(n_in + n_hid, n_hid)
        self.i2o = nn.Linear(n_in + n_hid, n_out)
        self.i2o_unused = nn.Linear(n_hid, n_out)      # from an older version, not called

    def forward(self, x, h):
        z = torch.cat((x, h), 1)
        h = F.tanh(self.i2h(z))
        out = F.log_softmax(self.i2o(z), dim=1)
        return out, h

    def init_hidden(self):
        return Variable(self.i2h.weight.data.new(1, self.n_hid).zero_())


rnn = RNN(len(LETTERS), 24, len(CATS))
crit = nn.NLLLoss(size_average=False)
lr = 0.25
running = None


def train(cat, name):
    h = rnn.init_hidden()
    rnn.zero_grad()
    line = letter_tensor(name)
    for i in range(line.size(0)):
        out, h = rnn(Variable(line[i], requires_grad=False), h)
    loss = crit(out, Variable(torch.LongTensor([cat])))
    loss.backward()
    # no torch.optim, just like the tutorial
    total = 0.
    for p in rnn.parameters():
        if p.grad is not None:
            total += p.grad.data.norm() ** 2
    coef = min(1., 1. / (math.sqrt(total) + 1e-6))
    for p in rnn.parameters():
        if p.grad is None:
            continue
        p.data.add_(p.grad.data * coef, alpha=-lr)
    return out, float(loss.data)


for it in range(1, 61):
    c = random.randrange(len(CATS))
    nm = random.choice(NAMES[CATS[c]])
    out, loss = train(c, nm)
    running = loss if running is None else .9 * running + .1 * loss
    guess = CATS[int(out.data.topk(1)[1][0][0])]
    print('%3d  %-12s %.7f (%.5f) %s' % (it, nm, loss, running, 'ok' if guess == CATS[c] else 'WRONG'))

print('final', '%.6f' % sum(p.data.abs().sum().item() for p in rnn.parameters()))
