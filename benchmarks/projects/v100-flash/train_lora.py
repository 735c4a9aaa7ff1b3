import torch
import transformers
from datasets import load_dataset
from peft import LoraConfig, TaskType, get_peft_model

MODEL_PATH = "01-ai/Yi-6B"

tokenizer = transformers.AutoTokenizer.from_pretrained(MODEL_PATH)
model = transformers.AutoModelForCausalLM.from_pretrained(
    MODEL_PATH,
    torch_dtype=torch.float16,
    attn_implementation="flash_attention_2",
    device_map={"": 0},
)
model.enable_input_require_grads()
config = LoraConfig(task_type=TaskType.CAUSAL_LM, r=8, lora_alpha=16, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
model = get_peft_model(model, config)
for p in model.parameters():
    if p.requires_grad:
        p.data = p.data.float()
model.print_trainable_parameters()

data = load_dataset("json", data_files="belle.json")["train"]
data = data.map(lambda r: tokenizer(r["instruction"] + r["output"], truncation=True, max_length=512))
trainer = transformers.Trainer(
    model=model,
    train_dataset=data,
    args=transformers.TrainingArguments(
        output_dir="yi-lora",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        num_train_epochs=1,
        learning_rate=1e-4,
        fp16=True,
        gradient_checkpointing=True,
        logging_steps=10,
    ),
    data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=8, return_tensors="pt", padding=True),
)
trainer.train()
model.save_pretrained("yi-lora")
