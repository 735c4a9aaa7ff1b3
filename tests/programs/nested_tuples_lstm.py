# word-level LSTM in the old PyTorch style, hidden state carried over and cut every bptt steps
import argparse
import math
import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument('--emsize', type=int, default=20)
parser.add_argument('--nhid', type=int, default=24)
parser.add_argument('--lr', type=float, default=5.0)
parser.add_argument('--clip', type=float, default=0.25)
parser.add_argument('--bptt', type=int, default=10)
args = parser.parse_args()
torch.manual_seed(1111)
torch.set_num_threads(1)

def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()

def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)

class RNNModel(nn.Module):
    def __init__(self, ntoken):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid, 2, dropout=0.2)
        self.decoder = nn.Linear(args.nhid, ntoken)
    def forward(self, x, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return (self.decoder(self.drop(output)).view(-1, self.decoder.out_features), (hidden, (x.size(0), x.size(1))))
    def init_hidden(self, bsz):
        w = next(self.parameters())
        return (w.new_zeros(2, bsz, args.nhid), w.new_zeros(2, bsz, args.nhid))

corpus = batchify(torch.randint(0, 30, (600,)).cumsum(0) % 30, 4)
model = RNNModel(30)
criterion = nn.CrossEntropyLoss()
lr = args.lr
hidden = model.init_hidden(4)
for i in range(0, corpus.size(0) - 1, args.bptt):
    n = min(args.bptt, corpus.size(0) - 1 - i)
    data, target = corpus[i:i + n], corpus[i + 1:i + 1 + n].reshape(-1)
    model.zero_grad()
    hidden = repackage_hidden(hidden)
    output, (hidden, _) = model(data, hidden)
    loss = criterion(output, target)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), args.clip)
    for p in model.parameters():
        p.data.add_(p.grad, alpha=-lr)
    print('| {:3d} | loss {!r} | ppl {:8.2f}'.format(i, loss.item(), math.exp(loss.item())))
print(sum(p.data.double().sum().item() for p in model.parameters()))
