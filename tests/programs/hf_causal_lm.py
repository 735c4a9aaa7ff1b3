"""Trainer on a three-layer Llama that is built here, text of made-up ids."""
import tempfile

import torch
from transformers import (LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments,
                          set_seed)


class Print(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs:
            print(state.global_step, logs["loss"], logs["grad_norm"])


torch.set_num_threads(1)
set_seed(0)
config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
                     num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
model = LlamaForCausalLM(config)
ids = torch.randint(3, 64, (40, 16))
rows = [{"input_ids": r, "labels": r.clone(), "attention_mask": torch.ones_like(r)} for r in ids]
with tempfile.TemporaryDirectory() as out:
    args = TrainingArguments(output_dir=out, per_device_train_batch_size=4, gradient_accumulation_steps=2, max_steps=8,
                             learning_rate=1e-3, logging_steps=1, save_steps=4, use_cpu=True, report_to=[], disable_tqdm=True)
    trainer = Trainer(model=model, args=args, train_dataset=rows, callbacks=[Print()])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
print("weights", sum(p.double().sum().item() for p in model.parameters()))
