"""Fine-tune TinyLlama on a few instructions.

    python train.py --config sft_config.yaml
"""

import argparse

import yaml

try:
    from unsloth import FastLanguageModel  # before trl and transformers, which it patches
except (ImportError, NotImplementedError):  # not installed, or no GPU
    FastLanguageModel = None

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import SFTConfig, SFTTrainer

TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def load(name, max_length):
    """The model with its adapters, and the tokenizer: Unsloth's where it runs, the same from PEFT elsewhere."""
    if FastLanguageModel is not None:
        model, tokenizer = FastLanguageModel.from_pretrained(
            model_name=name, max_seq_length=max_length, dtype=None, load_in_4bit=False
        )
        model = FastLanguageModel.get_peft_model(
            model, r=16, target_modules=TARGETS, lora_alpha=16, lora_dropout=0, bias="none", random_state=3407
        )
        return model, tokenizer
    dtype = torch.bfloat16 if is_bfloat16_supported() else torch.float16
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype)
    torch.manual_seed(3407)
    adapter = LoraConfig(r=16, target_modules=TARGETS, lora_alpha=16, lora_dropout=0, bias="none", task_type="CAUSAL_LM")
    return get_peft_model(model, adapter), AutoTokenizer.from_pretrained(name)


def is_bfloat16_supported():
    return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", default="sft_config.yaml")
    parser.add_argument("--model", default="model")
    parser.add_argument("--data", default="train.jsonl")
    options = parser.parse_args()
    with open(options.config) as file:
        settings = yaml.safe_load(file)

    args = SFTConfig(**settings)
    model, tokenizer = load(options.model, args.max_length)
    dataset = load_dataset("json", data_files=options.data, split="train")
    trainer = SFTTrainer(model=model, args=args, train_dataset=dataset, processing_class=tokenizer)
    trainer.train()
    trainer.save_model(args.output_dir)


if __name__ == "__main__":
    main()
