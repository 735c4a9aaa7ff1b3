# AdaLoRA on a very small Llama: indemnity, notice and governing-law clauses, one rank budget for all of them.
import random

import torch
from peft import AdaLoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

TOTAL = 34


def build_corpus(seed):
    r = random.Random(seed)
    parties = ["supplier", "licensee", "tenant", "carrier", "agent"]
    laws = ["england", "ontario", "bavaria", "geneva"]
    kinds = [
        lambda: f"the {r.choice(parties)} shall indemnify the {r.choice(parties)} against all loss and cost arising from breach",
        lambda: f"notice to the {r.choice(parties)} is given in writing within {r.choice(['ten', 'thirty', 'ninety'])} days",
        lambda: f"this deed is governed by the laws of {r.choice(laws)}",
    ]
    return [r.choice(kinds)().split() for _ in range(160)]


class ClauseSet:
    def __init__(self, clauses):
        words = sorted({w for c in clauses for w in c})
        self.index = {w: i + 3 for i, w in enumerate(words)}
        self.clauses = clauses
        self.size = len(words) + 3

    def batch(self, r, n=10):
        rows = [[1] + [self.index[w] for w in c] + [2] for c in r.sample(self.clauses, n)]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        keep = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": keep, "labels": ids.masked_fill(keep == 0, -100)}


def main():
    torch.manual_seed(8)
    torch.set_num_threads(1)
    r = random.Random(8)
    data = ClauseSet(build_corpus(8))
    base = LlamaForCausalLM(LlamaConfig(
        vocab_size=data.size, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        initializer_range=0.15))
    model = get_peft_model(base, AdaLoraConfig(
        init_r=6, target_r=2, tinit=5, tfinal=8, deltaT=3, total_step=TOTAL, lora_alpha=24, lora_dropout=0.0,
        orth_reg_weight=0.05, target_modules=["q_proj", "v_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM"))
    adapters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(adapters, lr=3e-2, weight_decay=0.0)
    model.train()
    for it in range(TOTAL):
        out = model(**data.batch(r))
        out.loss.backward()
        optimizer.step()
        model.base_model.update_and_allocate(it)
        optimizer.zero_grad()
        alive = sum(int((p != 0).sum()) for n, p in model.named_parameters() if "lora_E" in n)
        print(f"iter {it + 1:2d} | loss {out.loss.item():.4f} | singular values in use {alive}")
    total = sum(p.detach().abs().sum().item() for p in model.parameters())
    print(f"absolute sum of base and adapters {total:.5f}")


if __name__ == "__main__":
    main()
