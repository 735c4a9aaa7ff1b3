from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer
import torch

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-7B", torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2")
args = SFTConfig(output_dir="out", packing=True, max_length=8192, bf16=True, learning_rate=1e-5, per_device_train_batch_size=1,
                 gradient_accumulation_steps=16, lr_scheduler_type="cosine", warmup_ratio=0.03, num_train_epochs=2)
SFTTrainer(model=model, args=args, train_dataset=load_dataset("HuggingFaceTB/smoltalk", "all", split="train"),
           processing_class=AutoTokenizer.from_pretrained("Qwen/Qwen2.5-7B")).train()
