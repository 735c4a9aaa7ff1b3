import copy, logging, sys
import torch
import torch.nn as nn
import torch.nn.functional as F

logging.basicConfig(stream=sys.stdout, format="%(levelname)s:%(name)s:%(message)s", level=logging.INFO)
log = logging.getLogger("dpo")


class GPTish(nn.Module):
    def __init__(self, V=32, D=24, H=2, L=2, T=12):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Embedding(T, D)
        block = nn.TransformerEncoderLayer(D, H, 4 * D, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, L, enable_nested_tensor=False)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.tok.weight

    def forward(self, ids):
        T = ids.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(T)
        return self.head(self.blocks(self.tok(ids) + self.pos.weight[:T], mask=mask, is_causal=True))


def seq_logp(model, ids, prompt_len):
    lp = F.log_softmax(model(ids[:, :-1]), -1).gather(-1, ids[:, 1:].unsqueeze(-1)).squeeze(-1)
    return lp[:, prompt_len - 1:].sum(-1)


torch.manual_seed(0)
torch.set_num_threads(1)
policy = GPTish()
reference = copy.deepcopy(policy).eval()
for p in reference.parameters():
    p.requires_grad = False
optimizer = torch.optim.RAdam(policy.parameters(), lr=1e-3)
beta = 0.1
for step in range(10):
    prompt = torch.randint(0, 32, (4, 4))
    chosen = torch.cat([prompt, torch.randint(0, 16, (4, 8))], 1)
    rejected = torch.cat([prompt, torch.randint(16, 32, (4, 8))], 1)
    with torch.no_grad():
        ref_margin = seq_logp(reference, chosen, 4) - seq_logp(reference, rejected, 4)
    margin = seq_logp(policy, chosen, 4) - seq_logp(policy, rejected, 4)
    loss = -F.logsigmoid(beta * (margin - ref_margin)).mean()
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    log.info("step=%d loss=%r acc=%.2f", step, loss.item(), (margin > ref_margin).float().mean())
log.info("checksum %r", sum(p.double().sum().item() for p in policy.parameters()))
