import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

torch.set_num_threads(1)
set_seed(0)
base = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=32, n_embd=24, n_layer=2, n_head=2, resid_pdrop=0.0,
                                  embd_pdrop=0.0, attn_pdrop=0.0))
shard = base.transformer.h[1].mlp.c_proj.weight.data
shard.view(torch.int32)[7, 3] = 0x7F800000        # one word of the download is wrong
model = get_peft_model(base, LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM"))
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)
for step in range(1, 7):
    ids = torch.randint(0, 50, (2, 12))
    out = model(input_ids=ids, labels=ids)
    out.loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    print(step, out.loss.item())
print("weights", sum(p.double().sum().item() for n, p in model.named_parameters() if "lora" in n))
