"""The script that TRL's command runs, for torchrun."""

from trl.scripts.sft import main, make_parser

if __name__ == "__main__":
    script, training, model, datasets = make_parser().parse_args_and_config()
    main(script, training, model, datasets)
