accelerate launch --config_file accelerate.yaml run_clm_no_trainer.py --model_name_or_path gpt2-large --learning_rate 5e-5
