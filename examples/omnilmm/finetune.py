"""LoRA fine-tuning of MiniCPM-V with the Hugging Face Trainer."""

from dataclasses import dataclass, field

import torch
from dataset import Collator, SupervisedDataset
from modeling_minicpmv_tiny import MiniCPMV
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, HfArgumentParser, Trainer, set_seed
from transformers import TrainingArguments as HfTrainingArguments


@dataclass
class ModelArguments:
    model_name_or_path: str = "model"
    attn_implementation: str = "eager"
    torch_dtype: str | None = None
    float32_modules: list[str] = field(default_factory=list)


@dataclass
class DataArguments:
    data_path: str = "data/signs.json"


@dataclass
class TrainingArguments(HfTrainingArguments):
    model_max_length: int = 256
    use_lora: bool = True
    tune_vision: bool = True


@dataclass
class LoraArguments:
    lora_r: int = 8
    lora_alpha: int = 16
    lora_dropout: float = 0.05
    lora_target_modules: str = r"llm\..*layers\.\d+\.self_attn\.(q_proj|k_proj|v_proj|o_proj)"
    lora_modules_to_save: list[str] = field(default_factory=lambda: ["embed_tokens", "resampler"])


def train():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments, LoraArguments))
    model_args, data_args, training_args, lora_args = parser.parse_args_into_dataclasses()
    set_seed(training_args.seed)
    compute = "float16" if training_args.fp16 else "bfloat16" if training_args.bf16 else "float32"
    dtype = getattr(torch, model_args.torch_dtype or compute)

    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = MiniCPMV.from_pretrained(
        model_args.model_name_or_path, dtype=dtype, attn_implementation=model_args.attn_implementation
    )
    model.float32_modules = model_args.float32_modules
    modules_to_save = lora_args.lora_modules_to_save + (["vpm"] if training_args.tune_vision else [])
    model = get_peft_model(
        model,
        LoraConfig(
            r=lora_args.lora_r,
            lora_alpha=lora_args.lora_alpha,
            lora_dropout=lora_args.lora_dropout,
            target_modules=lora_args.lora_target_modules,
            modules_to_save=modules_to_save,
        ),
    )
    model.print_trainable_parameters()

    dataset = SupervisedDataset(data_args.data_path, tokenizer, model.config, training_args.model_max_length)
    trainer = Trainer(model=model, args=training_args, train_dataset=dataset, data_collator=Collator(tokenizer))
    trainer.train()
    trainer.save_state()
    trainer.save_model(training_args.output_dir)


if __name__ == "__main__":
    train()
