"""Continued pretraining with a warmup-stable-decay schedule."""
import warnings

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM

warnings.filterwarnings("ignore", category=RuntimeWarning)
torch.manual_seed(3)

EPOCHS, BATCH, WARMUP = 12, 8, 4
docs = torch.randint(0, 120, (26, 20))
loader = DataLoader(TensorDataset(docs), batch_size=BATCH, shuffle=True,
                    generator=torch.Generator().manual_seed(0))

total_steps = len(docs) // BATCH * EPOCHS
decay_start = int(0.8 * total_steps)


def wsd(step):
    if step < WARMUP:
        return (step + 1) / WARMUP
    if step < decay_start:
        return 1.0
    return np.sqrt((total_steps - step) / (total_steps - decay_start))


model = LlamaForCausalLM(LlamaConfig(
    vocab_size=120, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=4, tie_word_embeddings=True))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, wsd)

step = 0
for epoch in range(EPOCHS):
    for (ids,) in loader:
        out = model(input_ids=ids, labels=ids)
        out.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        step += 1
        print(f"epoch {epoch} step {step} loss {out.loss.item():.4f}")

print("checksum", sum(p.detach().pow(2).sum().item() for p in model.parameters()))
