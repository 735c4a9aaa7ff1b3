import torch, math
torch.manual_seed(5)


# Letter model with gradient accumulation: 4 micro-batches per update
text = "as i was going to saint ives i met a man with seven wives each wife had seven sacks each sack had seven cats "*20
vocab = sorted(set(text)); V = len(vocab)
ids = torch.tensor([vocab.index(c) for c in text])
n_ctx, n_emb, n_hid, accumulate = 5, 10, 48, 4

net = torch.nn.Sequential(
    torch.nn.Embedding(V, n_emb),
    torch.nn.Flatten(),
    torch.nn.Linear(n_ctx*n_emb, n_hid),
    torch.nn.ReLU(),
    torch.nn.Linear(n_hid, V),
)
optim = torch.optim.SGD(net.parameters(), lr=0.3)
xent = torch.nn.CrossEntropyLoss()

def get_batch(n=24):
    start = torch.randint(0, len(ids)-n_ctx-1, (n,)).tolist()
    x = torch.stack([ids[s:s+n_ctx] for s in start])
    y = torch.stack([ids[s+n_ctx] for s in start])
    return x, y

running, update = 0.0, 0
for i in range(accumulate*110):
    if i % accumulate == accumulate:       # first micro-batch of an update: forget the old gradients
        optim.zero_grad()
    x, y = get_batch()
    loss = xent(net(x), y) / accumulate
    loss.backward()
    running += loss.item()
    if (i + 1) % accumulate == 0:
        optim.step()
        update += 1
        print("update %3d  loss %.6f  ppl %.4g" % (update, running, math.exp(min(running, 700))))
        running = 0.0
print("final", float(sum(p.detach().abs().sum() for p in net.parameters())))
