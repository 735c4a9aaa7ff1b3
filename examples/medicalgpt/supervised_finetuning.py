"""Supervised fine-tuning on multi-turn conversations (ShareGPT rows) with the Trainer of transformers."""

import logging
import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from datasets import load_dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    HfArgumentParser,
    Trainer,
    TrainingArguments,
    set_seed,
)

logger = logging.getLogger(__name__)
IGNORED = -100


@dataclass
class ModelArguments:
    model_name_or_path: str
    torch_dtype: str = field(default="float16", metadata={"help": "auto, bfloat16, float16 or float32"})


@dataclass
class DataArguments:
    train_file_dir: str
    validation_file_dir: str | None = None


@dataclass
class ScriptArguments:
    use_peft: bool = True
    template_name: str = "vicuna"
    model_max_length: int = 512


@dataclass
class Template:
    """How the turns of a conversation become text; `{}` stands for what is said."""

    system: str
    query: str
    answer: str


TEMPLATES = {
    "zephyr": Template(system="<|system|>\n{}</s>\n", query="<|user|>\n{}</s>\n<|assistant|>\n", answer="{}</s>\n"),
    "vicuna": Template(system="{} ", query="USER: {} ASSISTANT: ", answer="{}</s>"),
}


def tokenized(row, tokenizer, template, max_length):
    """Token ids of a row; only what the assistant says is learned."""
    ids, labels = [], []

    def add(text, learned):
        tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        ids.extend(tokens)
        labels.extend(tokens if learned else [IGNORED] * len(tokens))

    for turn in row["conversations"]:
        said = turn["value"]
        if turn["from"] == "system":
            add(template.system.format(said), learned=False)
        elif turn["from"] == "human":
            add(template.query.format(said), learned=False)
        else:
            add(template.answer.format(said), learned=True)
    return {"input_ids": ids[:max_length], "labels": labels[:max_length]}


def read(directory, tokenizer, script_args):
    files = sorted(str(path) for path in Path(directory).glob("*.jsonl"))
    rows = load_dataset("json", data_files=files, split="train")
    return rows.map(
        tokenized,
        fn_kwargs={
            "tokenizer": tokenizer,
            "template": TEMPLATES[script_args.template_name],
            "max_length": script_args.model_max_length,
        },
        remove_columns=rows.column_names,
    )


def main():
    parser = HfArgumentParser((ModelArguments, DataArguments, TrainingArguments, ScriptArguments))
    model_args, data_args, training_args, script_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(level=logging.INFO)
    set_seed(training_args.seed)

    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    dtype = model_args.torch_dtype
    model = AutoModelForCausalLM.from_pretrained(
        model_args.model_name_or_path, dtype=dtype if dtype == "auto" else getattr(torch, dtype)
    )
    if script_args.use_peft:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    else:
        logger.info("Fine-tuning method: full parameters")

    trainer = Trainer(
        model=model,
        args=training_args,
        train_dataset=read(data_args.train_file_dir, tokenizer, script_args) if training_args.do_train else None,
        eval_dataset=read(data_args.validation_file_dir, tokenizer, script_args) if training_args.do_eval else None,
        data_collator=DataCollatorForSeq2Seq(tokenizer, label_pad_token_id=IGNORED),
        processing_class=tokenizer,
    )
    if training_args.do_train:
        trainer.train()
        trainer.save_model()
    if training_args.do_eval:
        loss = trainer.evaluate()["eval_loss"]
        logger.info("eval_loss %s, perplexity %s", loss, math.exp(loss))


if __name__ == "__main__":
    main()
