from dataclasses import dataclass, field

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, HfArgumentParser
from trl import SFTConfig, SFTTrainer


@dataclass
class ScriptArguments:
    model: str = field(default="meta-llama/Llama-3.2-1B")
    data: str = field(default="HuggingFaceH4/ultrachat_200k")


if __name__ == "__main__":
    parser = HfArgumentParser(ScriptArguments)
    (script_args,) = parser.parse_args_into_dataclasses()
    model = AutoModelForCausalLM.from_pretrained(script_args.model, attn_implementation="sdpa")
    tokenizer = AutoTokenizer.from_pretrained(script_args.model)
    tokenizer.pad_token = "<|finetune_right_pad_id|>"
    dataset = load_dataset(script_args.data, split="train_sft")
    config = SFTConfig(
        output_dir="llama-sft",
        learning_rate=1e-5,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=32,
        num_train_epochs=1,
        bf16=True,
        max_seq_length=2048,
        logging_steps=1,
    )
    trainer = SFTTrainer(model=model, args=config, train_dataset=dataset, tokenizer=tokenizer)
    trainer.train()
