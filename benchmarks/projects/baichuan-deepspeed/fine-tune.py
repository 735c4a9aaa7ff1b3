import json
from dataclasses import dataclass, field
from typing import Dict, Optional
import torch
import transformers
from torch.utils.data import Dataset
from transformers.training_args import TrainingArguments


@dataclass
class ModelArguments:
    model_name_or_path: Optional[str] = field(default="baichuan-inc/Baichuan2-7B-Base")


@dataclass
class DataArguments:
    data_path: str = field(default=None, metadata={"help": "Path to the training data."})


@dataclass
class TrainingArguments(transformers.TrainingArguments):
    cache_dir: Optional[str] = field(default=None)
    optim: str = field(default="adamw_torch")
    model_max_length: int = field(default=512)
    use_lora: bool = field(default=False)


class SupervisedDataset(Dataset):
    def __init__(self, data_path, tokenizer, model_max_length, user_tokens=[195], assistant_tokens=[196]):
        self.data = json.load(open(data_path))
        self.tokenizer = tokenizer
        self.model_max_length = model_max_length
        self.user_tokens, self.assistant_tokens, self.ignore_index = user_tokens, assistant_tokens, -100

    def __len__(self):
        return len(self.data)

    def __getitem__(self, idx) -> Dict[str, torch.Tensor]:
        input_ids, labels = [], []
        for message in self.data[idx]["conversations"]:
            ids = self.tokenizer.encode(message["value"])
            if message["from"] == "human":
                input_ids += self.user_tokens + ids
                labels += [self.tokenizer.eos_token_id] + [self.ignore_index] * len(ids)
            else:
                input_ids += self.assistant_tokens + ids
                labels += [self.ignore_index] + ids
        input_ids.append(self.tokenizer.eos_token_id)
        labels.append(self.tokenizer.eos_token_id)
        input_ids, labels = input_ids[: self.model_max_length], labels[: self.model_max_length]
        pad = self.model_max_length - len(input_ids)
        input_ids = torch.LongTensor(input_ids + [self.tokenizer.pad_token_id] * pad)
        labels = torch.LongTensor(labels + [self.ignore_index] * pad)
        return {"input_ids": input_ids, "labels": labels, "attention_mask": input_ids.ne(self.tokenizer.pad_token_id)}


def train():
    parser = transformers.HfArgumentParser((ModelArguments, DataArguments, TrainingArguments))
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        model_args.model_name_or_path, trust_remote_code=True, cache_dir=training_args.cache_dir
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        model_args.model_name_or_path, use_fast=False, trust_remote_code=True,
        model_max_length=training_args.model_max_length,
    )
    dataset = SupervisedDataset(data_args.data_path, tokenizer, training_args.model_max_length)
    trainer = transformers.Trainer(model=model, args=training_args, train_dataset=dataset, tokenizer=tokenizer)
    trainer.train()
    trainer.save_state()
    trainer.save_model(output_dir=training_args.output_dir)


if __name__ == "__main__":
    train()
