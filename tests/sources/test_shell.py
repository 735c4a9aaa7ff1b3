"""Shell scripts that launch a trainer: read, never run."""

import json
import textwrap

import pytest
from tests.sources.worlds import one_line, settings

from finitune.finding import UnreadableInput
from finitune.preflight import check
from finitune.reports import sarif
from finitune.sources.configs import shell
from finitune.sources.configs.shell import MAX_LAUNCHES
from finitune.sources.editing.shell_words import UNKNOWN, Script
from finitune.sources.gather import gather, gather_each
from finitune.sources.result import Reading
from finitune.sources.weights import checkpoint


def script(tmp_path, text, name="run.sh"):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def words(text):
    commands = Script(text=textwrap.dedent(text)).commands()
    return [[word.text for word in command.words] for command in commands]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a 'b c' \"d e\"f", [["a", "b c", "d ef"]]),
        ("a \\\n  b # comment\nc", [["a", "b"], ["c"]]),
        ("a b#c '#' d", [["a", "b#c", "#", "d"]]),
        ("X=1; a $X ${X}2 '$X' \"$X y\"", [["a", "1", "12", "$X", "1 y"]]),
        ("a ${X:-5} ${X-6} ${X:=7}", [["a", "5", "6", "7"]]),
        ("X=${X:-5}\na $X", [["a", "5"]]),
        ("X=${1:-data}; a $X $2", [["a", "data", UNKNOWN]]),
        ("a $(date) `date` $((1+2)) ${X} ${X%.*}", [["a", *[UNKNOWN] * 5]]),
        ("a $(echo $(b c) ) d", [["a", UNKNOWN, "d"]]),
        ("ARGS='--x 1 --y'\na $ARGS \"$ARGS\"", [["a", "--x", "1", "--y", "--x 1 --y"]]),
        ('ARGS=" --x 1 \\\n --y 2 "\na $ARGS z', [["a", "--x", "1", "--y", "2", "z"]]),
        ('A=(1 "2 3" # no\n 4)\na "${A[@]}"', [["a", "1", "2 3", "4"]]),
        ("A=(1)\nA+=(2)\na ${A[@]}", [["a", "1", "2"]]),
        ("A=x\nA+=y\na $A", [["a", "xy"]]),
        ("export A=1 B=2\na $A $B", [["a", "1", "2"]]),
        ("A=1 a b=2", [["a", "b=2"]]),
        ("a >log 2>&1 | tee log & b", [["a"], ["tee", "log"], ["b"]]),
        ("cat <<EOF > f\n--lr 1\nEOF\na", [["cat"], ["a"]]),
        ("if [ $X ]; then\n a\nfi", [["a"]]),
        ("f() { a; }\n", [["a"]]),
        ("for X in 1 2; do a $X; done", [["a", UNKNOWN]]),
        ('F=\na $F b "$F"', [["a", "b", ""]]),
        ("a > log b <<EOF c\nno\nEOF\nd", [["a", "b", "c"], ["d"]]),
        ("a --port <port>\n\nb c", [["a", "--port", UNKNOWN], ["b", "c"]]),
        ("a \"say <b> c\" 'd <e> f'", [["a", "say <b> c", "d <e> f"]]),
        ("a ./$X/$Y/z b", [["a", UNKNOWN, "b"]]),
        ("a `# why` \\\n b `# and` c", [["a", "b", "c"]]),
        ("a {b,c} '{\"k\": 1}'", None),
        ("A=$B\nB=$A\na $A $B", [["a", UNKNOWN, UNKNOWN]]),
        ("a\r\nb\r\n", [["a"], ["b"]]),
        ("a 'unbalanced\nb", [["a"]]),
        ('a "unbalanced', [["a"]]),
        ("a ${unbalanced", None),
    ],
)
def test_words(text, expected):
    found = words(text)
    if expected is not None:
        assert found == expected


def test_the_line_of_a_command_survives_continuations():
    found = list(Script(text="a\n\nb \\\n c\nd").commands())
    assert [(c.words[0].text, c.line) for c in found] == [("a", 1), ("b", 3), ("d", 5)]


MEDICALGPT = """
    #!/usr/bin/env bash
    # full fine-tuning --fp16
    export CUDA_VISIBLE_DEVICES=0,1
    MODEL=${MODEL:-01-ai/Yi-6B}
    LR=2e-6
    cd "$(dirname "$0")"
    torchrun --nproc_per_node 7 --master_port=29500 supervised_finetuning.py \\
        --model_name_or_path "$MODEL" \\
        --do_train --use_peft False \\
        --per_device_train_batch_size 4 --gradient_accumulation_steps=1 \\
        --learning_rate $LR --weight_decay 0 --max_grad_norm 1.0 \\
        --model_max_length 4096 --gradient_checkpointing True \\
        --torch_dtype bfloat16 --bp16 \\
        --template_name yi \\
        --output_dir out/$(date +%s) \\
        --deepspeed zero2.json 2>&1 | tee train.log
"""


def test_a_script_with_the_deepspeed_file_it_names(tmp_path):
    settings(
        tmp_path / "zero2.json", bf16={"enabled": True}, zero_optimization={"stage": 2, "overlap_comm": True},
        train_micro_batch_size_per_gpu="auto", gradient_accumulation_steps=2, gradient_clipping="auto",
    )  # fmt: skip
    path = script(tmp_path, MEDICALGPT)
    reading = gather(path)
    facts = reading.facts
    assert (facts.precision.compute, facts.precision.parameters) == ("bfloat16", "bfloat16")
    assert (facts.parallel.zero_stage, facts.parallel.overlap_comm, facts.parallel.world) == (2, True, 7)
    optimizer = facts.optimizer
    assert (optimizer.lr, optimizer.batch, optimizer.clip, optimizer.lora) == (2e-6, 4, 1.0, False)
    assert facts.adapter.kind == "none"
    assert facts.training.model_name == "01-ai/Yi-6B"
    assert facts.training.chat_template == "yi"
    assert facts.batching.max_length == 4096
    (different,) = facts.disagreements
    assert (different.key, different.values) == ("optimizer.accumulation", ["2", "1"])
    assert different.sources == [str(tmp_path / "zero2.json"), str(path)]
    (key,) = facts.unknown_keys
    assert (key.file, key.key, key.near) == (str(path), "bp16", ["bf16", "fp16"])
    assert {entry.input for entry in reading.not_checked} == {"model", "data", "gpu", "program"}


def test_the_named_file_may_lie_in_the_root_of_the_project_or_nowhere(tmp_path):
    path = script(tmp_path, "deepspeed train.py --deepspeed ds/z.json --learning_rate 1e-5\n", "scripts/a/run.sh")
    (entry, *_) = gather(path).not_checked
    assert entry.why == f"{path} names ds/z.json, which is not here"
    (tmp_path / "ds").mkdir()
    settings(tmp_path / "ds/z.json", fp16={"enabled": True})
    assert next(iter(gather(path).not_checked)) == entry
    (tmp_path / ".git").mkdir()
    assert gather(path).facts.precision.compute == "float16"


def test_only_regular_files_are_followed(tmp_path):
    for name in ("/dev/zero", "/dev/zero.json", str(tmp_path), "../../nowhere.json", "a\0b.json"):
        path = script(tmp_path, f"deepspeed train.py --deepspeed {name} --fp16\n")
        assert gather(path).facts.precision.compute == "float16"


def test_lora_in_float16_as_minicpm_does_it(tmp_path):
    text = """
        #!/bin/bash
        GPUS_PER_NODE=8
        DISTRIBUTED_ARGS="
            --nproc_per_node $GPUS_PER_NODE \\
            --nnodes 1
        "
        torchrun $DISTRIBUTED_ARGS finetune.py  \\
            --bf16 false --bf16_full_eval false \\
            --fp16 true --fp16_full_eval true \\
            --use_lora true --lora_target_modules "llm\\..*layers\\.\\d+\\.self_attn" \\
            --adam_beta2 0.95 --learning_rate 1e-6
    """
    facts = gather(script(tmp_path, text)).facts
    assert (facts.precision.compute, facts.precision.full_eval) == ("float16", "float16")
    assert facts.adapter.kind == "lora"
    assert (facts.parallel.world, facts.parallel.nodes) == (8, 1)


def test_accelerate_launch_with_its_own_flags(tmp_path):
    text = "accelerate launch --mixed_precision bf16 --num_processes 4 --use_deepspeed --zero_stage 3 t.py --lr 1e-5"
    facts = gather(script(tmp_path, text + " --learning_rate 1e-5")).facts
    assert facts.precision.compute == "bfloat16"
    assert (facts.parallel.world, facts.parallel.zero_stage) == (4, 3)
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: fp16\n")
    text = "accelerate launch --config_file acc.yaml t.py --learning_rate 1e-5"
    assert gather(script(tmp_path, text)).facts.precision.compute == "float16"


@pytest.mark.parametrize(
    "command",
    [
        "llamafactory-cli train c.yaml",
        "python src/train.py c.yaml",
        "FORCE_TORCHRUN=1 llamafactory-cli train c.yaml",
        "python -m llamafactory.cli train c.yaml",
        "nohup python3 -u train.py c.yaml > log 2>&1 &",
    ],
)
def test_a_trainer_that_takes_a_file(tmp_path, command):
    (tmp_path / "c.yaml").write_text("stage: sft\nfinetuning_type: full\nlearning_rate: 1e-5\nfp16: true\n")
    assert gather(script(tmp_path, "#!/bin/sh\n" + command)).facts.precision.compute == "float16"


def test_python_m_and_other_launchers(tmp_path):
    for launch in ("python -m torch.distributed.run --nproc_per_node=2 t.py", "srun -n 2 python t.py", "swift sft"):
        facts = gather(script(tmp_path, f"{launch} --fp16 --learning_rate=1e-5\n", "run")).facts
        assert facts.optimizer.lr == 1e-5


def test_what_only_running_would_tell_is_left_out_and_said(tmp_path):
    path = script(tmp_path, "torchrun t.py --fp16 --learning_rate $(cat lr) --weight_decay $1\n")
    reading = gather(path)
    assert reading.facts.optimizer is None
    assert reading.not_checked[0].why == (
        f"{path}: line 1: only running the script would tell learning_rate, weight_decay"
    )


@pytest.mark.parametrize("rest", ['"$@"', "$@", "$EXTRA", "${MORE[@]}", "$(cat more)"])
def test_words_that_are_not_known_end_a_flag_and_do_not_add_to_its_value(tmp_path, rest):
    facts = gather(script(tmp_path, f"torchrun t.py --bf16 True --learning_rate 1e-5 {rest}\n")).facts
    assert (facts.optimizer.lr, facts.precision.compute) == (1e-5, "bfloat16")


def test_flags_that_other_formats_use_for_files_are_flags_like_any(tmp_path):
    text = "python finetune.py --base_model a/b --learning_rate 3e-4 --cutoff_len 512 --lora_r 8 --lora_alpha 16\n"
    reading = gather(script(tmp_path, text)).facts
    assert (reading.optimizer.lr, reading.adapter.rank, reading.unknown_keys) == (3e-4, 8, [])
    for flags in ("--mixed_precision fp16 --max_train_steps 9", "--train_batch_size 4 --lr_scheduler cosine"):
        facts = gather(script(tmp_path, f"accelerate launch train_image.py {flags} --learning_rate 1e-5\n")).facts
        assert (facts.optimizer.lr, facts.unknown_keys) == (1e-5, [])


def test_a_flag_may_hold_a_section_as_json(tmp_path):
    text = "python t.py --gradient_checkpointing --gradient_checkpointing_kwargs '{\"use_reentrant\": true}' --fp16\n"
    assert gather(script(tmp_path, text)).facts.training.reentrant is True
    assert gather(script(tmp_path, text.replace("true}", "tr"))).facts.training.reentrant is None


@pytest.mark.parametrize(("mixed", "loaded"), [("fp16", "float16"), ("bf16", "float32"), ("bf16", "bfloat16")])
def test_the_dtype_of_loading_is_no_word_on_what_to_compute_in(tmp_path, mixed, loaded):
    flags = f"--learning_rate 1e-5 --torch_dtype {loaded}"
    facts = gather(script(tmp_path, f"accelerate launch --mixed_precision {mixed} t.py {flags}\n")).facts
    assert (facts.precision.compute, facts.precision.parameters) == (
        {"fp16": "float16", "bf16": "bfloat16"}[mixed], loaded
    )  # fmt: skip
    assert facts.precision.scaler == ("dynamic" if mixed == "fp16" else "none")
    assert facts.disagreements == []


def test_what_accelerate_launch_is_told_is_not_taken_for_deepspeed_s(tmp_path):
    text = "accelerate launch --use_deepspeed --num_machines 1 --mixed_precision bf16 --zero_stage 2 t.py --lr 1e-5"
    assert gather(script(tmp_path, text + " --learning_rate 1e-5")).facts.unknown_keys == []


def test_every_launch_of_a_script_is_a_picture_of_its_own(tmp_path):
    path = script(tmp_path, "python a.py --learning_rate 1e-5\n\npython b.py --learning_rate 2e-5 --bf16\n")
    readings = list(gather_each(path))
    assert [lines for lines, _ in readings] == [[1], [3]]
    assert [reading.facts.optimizer.lr for _, reading in readings] == [1e-5, 2e-5]
    assert [reading.facts.disagreements for _, reading in readings] == [[], []]
    assert [reading.facts.precision is None for _, reading in readings] == [True, False]
    assert gather(path).facts.optimizer.lr == 1e-5


def test_a_finding_names_the_lines_of_its_launches(tmp_path):
    good, bad = "python a.py --bf16 --learning_rate 1e-5", "python a.py --bf16 --learning_rate 6e-3"
    result = check(script(tmp_path, f"#!/bin/sh\n{good}\n{bad}\n{good}\n{bad}"))
    (finding,) = [one for one in result.findings if one.cause == "lr-too-high"]
    assert finding.message.endswith("(launches in lines 3, 5)")
    assert "lr-too-high" not in result.passed
    assert len([entry for entry in result.not_checked if entry.input == "config"]) <= 1
    result = check(script(tmp_path, f"#!/bin/sh\n{good}\n{bad}"))
    (found,) = json.loads(sarif.render(result))["runs"][0]["results"]
    assert "(launch in line 3)" in found["message"]["text"]
    assert found["locations"][0]["physicalLocation"]["region"] == {"startLine": 3}


def test_a_loop_that_was_written_out_is_read_in_part_and_that_is_said(tmp_path):
    text = "".join(f"python a.py --bf16 --learning_rate {i}e-5\n" for i in range(1, 30))
    readings = list(gather_each(script(tmp_path, text)))
    assert len(readings) == MAX_LAUNCHES
    assert "only the first 16 launches were read" in readings[0][1].not_checked[0].why


def test_weights_are_read_once_for_all_launches(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(checkpoint, "read", lambda path, **more: read.append(path) or Reading())
    list(gather_each(script(tmp_path, "python a.py --bf16\npython b.py --bf16\npython b.py --fp16\n"), model=tmp_path))
    assert len(read) == 2


@pytest.mark.parametrize(
    "command",
    [
        "trl sft --config c.yaml --learning_rate 2e-5",
        "accelerate launch sft.py --config c.yaml --learning_rate 2e-5",
        "llamafactory-cli train c.yaml learning_rate=2e-5",
        "axolotl train c.yaml --learning-rate 2e-5",
        "accelerate launch -m axolotl.cli.train c.yaml --learning_rate=2e-5",
        "python -m axolotl.cli.train c.yaml --learning_rate=2e-5",
    ],
)
def test_flags_win_over_the_file_that_the_launch_names(tmp_path, command):
    formats = {"axolotl": "base_model: x\n", "llama": "stage: sft\nfinetuning_type: full\n", "": "output_dir: o\n"}
    opening = next(text for name, text in formats.items() if name in command)
    (tmp_path / "c.yaml").write_text(f"{opening}learning_rate: 1e-3\nbf16: true\n")
    facts = gather(script(tmp_path, "#!/bin/sh\n" + command)).facts
    assert (facts.optimizer.lr, facts.precision.compute) == (2e-5, "bfloat16")
    assert not facts.disagreements
    assert not facts.unknown_keys


@pytest.mark.parametrize("command", ["ludwig train --config c.yaml --dataset d.csv", "ludwig train -c c.yaml"])
def test_ludwig_takes_a_file(tmp_path, command):
    (tmp_path / "c.yaml").write_text("model_type: llm\nbase_model: x\nquantization: {bits: 4}\n")
    facts = gather(script(tmp_path, "#!/bin/sh\n" + command)).facts
    assert facts.quantization.bits == 4


def test_a_script_is_known_by_content_or_suffix_and_never_run(tmp_path):
    marker = tmp_path / "ran"
    text = f"export A=1\ntouch {marker}\nX=$(touch {marker})\npython t.py --fp16 --x `touch {marker}`\n"
    assert gather(script(tmp_path, text, "noname")).facts.precision.compute == "float16"
    assert not marker.exists()
    assert shell.parse("a: 1\n", "c.yaml") is None
    with pytest.raises(UnreadableInput) as caught:
        gather(script(tmp_path, "echo hello\n"))
    assert "no command that launches a trainer" in one_line(caught.value)
