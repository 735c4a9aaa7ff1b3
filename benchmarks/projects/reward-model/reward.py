from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import ModelConfig, RewardConfig, RewardTrainer, ScriptArguments, TrlParser

if __name__ == "__main__":
    parser = TrlParser((ScriptArguments, RewardConfig, ModelConfig))
    script_args, training_args, model_args = parser.parse_args_and_config()
    tokenizer = AutoTokenizer.from_pretrained(model_args.model_name_or_path)
    model = AutoModelForSequenceClassification.from_pretrained(model_args.model_name_or_path, num_labels=1)
    dataset = load_dataset(script_args.dataset_name)
    RewardTrainer(model=model, processing_class=tokenizer, args=training_args, train_dataset=dataset["train"]).train()
