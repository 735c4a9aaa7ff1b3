from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

dataset = load_dataset("allenai/tulu-3-sft-mixture", split="train")
trainer = SFTTrainer(
    "allenai/OLMo-2-0425-1B",
    args=SFTConfig(
        output_dir="olmo-packed",
        packing=True,
        max_length=4096,
        bf16=True,
        learning_rate=2e-5,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=8,
        model_init_kwargs={"attn_implementation": "sdpa", "torch_dtype": "float32"},
    ),
    train_dataset=dataset,
)
trainer.train()
