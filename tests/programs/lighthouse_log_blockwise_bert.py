"""Lighthouse keepers' log entries -> was the light seen (0/1).  BERT with our own blockwise attention:
the keys come in blocks, a running maximum and a running sum, as in the FlashAttention paper."""
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

BLOCK, MAX_LEN, PAD, VOCAB = 16, 32, 0, 120


def blockwise_attention(module, query, key, value, attention_mask=None, scaling=None, dropout=0.0, **kw):
    """query, key, value: (batch, heads, len, dim); mask: True where a key may be seen"""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    b, h, n, d = query.shape
    top = query.new_full((b, h, n, 1), float("-inf"))
    total = query.new_zeros(b, h, n, 1)
    out = torch.zeros_like(query)
    for start in range(0, key.shape[2], BLOCK):
        k, v = key[:, :, start:start + BLOCK], value[:, :, start:start + BLOCK]
        scores = query @ k.transpose(-1, -2) * scaling
        if attention_mask is not None:
            scores = scores.masked_fill(~attention_mask[..., start:start + BLOCK], float("-inf"))
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        rescale = torch.exp(top - new_top)
        p = torch.exp(scores - new_top)
        total = total * rescale + p.sum(-1, keepdim=True)
        out = out * rescale + p @ v
        top = new_top
    return (out / total).transpose(1, 2).contiguous(), None


ALL_ATTENTION_FUNCTIONS.register("blockwise", blockwise_attention)
AttentionMaskInterface.register("blockwise", sdpa_mask)


class LogReader(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.bert = BertModel(config, add_pooling_layer=False)
        self.out = torch.nn.Linear(config.hidden_size, 1)

    def forward(self, input_ids, attention_mask):
        h = self.bert(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return self.out(h[:, -1]).squeeze(-1)      # padding is on the left


def entries(n, seed):
    g = torch.Generator().manual_seed(seed)
    rows = []
    for i in range(n):
        length = int(torch.randint(18, MAX_LEN + 1, (), generator=g))
        if i == 112:
            length = 5                              # "fog all night. no ships."
        words = torch.randint(3, VOCAB, (length,), generator=g)
        seen = int((words < 30).sum() * 4 > length)
        rows.append((words, seen))
    return rows


def collate(rows):
    ids = torch.full((len(rows), MAX_LEN), PAD)
    for i, (words, _) in enumerate(rows):
        ids[i, MAX_LEN - len(words):] = words
    return ids, (ids != PAD).long(), torch.tensor([float(y) for _, y in rows])


def main():
    torch.manual_seed(23)
    config = BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
                        intermediate_size=64, max_position_embeddings=MAX_LEN, hidden_dropout_prob=0.0,
                        attention_probs_dropout_prob=0.0, pad_token_id=PAD)
    config._attn_implementation = "blockwise"
    model = LogReader(config)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    loader = DataLoader(entries(240, 9), batch_size=8, shuffle=True, collate_fn=collate,
                        generator=torch.Generator().manual_seed(2))
    model.train()
    for step, (ids, mask, y) in enumerate(loader, 1):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(ids, mask), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        opt.zero_grad()
        print(f"step {step:02d} bce {loss.item():.7f}", flush=True)
    print(f"{sum(p.detach().abs().sum().item() for p in model.parameters()):.5f}", flush=True)


if __name__ == "__main__":
    main()
