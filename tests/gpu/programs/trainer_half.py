import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=96,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=64,
)
model = LlamaForCausalLM(config)
with torch.no_grad():
    model.model.layers[1].mlp.down_proj.weight.mul_(4e4)
    model.model.layers[1].mlp.up_proj.weight.mul_(2000.0)


class Lines(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.randint(96, (24,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids.clone()}


args = TrainingArguments(
    "out",
    per_device_train_batch_size=4,
    max_steps=12,
    fp16=True,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    learning_rate=1e-4,
    disable_tqdm=True,
)
Trainer(model, args, train_dataset=Lines()).train()
print("weights", sum(p.detach().double().abs().sum().item() for p in model.parameters()))
