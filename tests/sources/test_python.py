"""Programs and notebooks: what is read of them, what is left to running, and that nothing is run."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.sources.worlds import one_line

from finitune.facts import Facts
from finitune.finding import UnreadableInput
from finitune.preflight import check
from finitune.sources.gather import gather

HEAD = "import torch, argparse\nfrom transformers import *\nfrom trl import *\nfrom peft import LoraConfig\n"
LOOP = "model = Net()\nopt = torch.optim.AdamW(model.parameters(), lr=3e-4, eps=1e-6)\nloss.backward()\nopt.step()\n"


def reading(folder: Path, text: str, name: str = "train.py", **given: Any) -> Any:
    file = folder / name
    file.write_text(HEAD + text if name.endswith(".py") else text)
    return gather(file, **given)


def facts(folder: Path, text: str, **given: Any) -> Facts:
    return reading(folder, text, **given).facts


def left_out(folder: Path, text: str) -> str:
    return "; ".join(one.why for one in reading(folder, text).not_checked if one.input == "config")


@pytest.mark.parametrize(
    "text",
    [
        "TrainingArguments('o', learning_rate=2e-4)",
        "LR = 2e-4\nTrainingArguments('o', learning_rate=LR)",
        "LR = 1e-4 * 2\ndef main(lr=LR):\n    return SFTConfig(learning_rate=lr)\nmain()",
        "p = argparse.ArgumentParser()\np.add_argument('--rate', type=float, default=2e-4)\na = p.parse_args()\n\
TrainingArguments('o', learning_rate=a.rate)",
        "@dataclass\nclass C:\n    lr: float = field(default=2e-4)\nc = C()\nDPOConfig(learning_rate=c.lr)",
        "common = dict(learning_rate=2e-4)\nTrainingArguments('o', **common)",
        "common = {'a': {'learning_rate': 2e-4}}\nTrainingArguments('o', **common['a'])",
        "a = TrainingArguments('o')\na.learning_rate = 2e-4",
        "if False:\n    LR = 1\nelse:\n    LR = 2e-4\nTrainingArguments('o', learning_rate=LR)",
        "LR = 5\nLR = 2e-4\nTrainingArguments('o', learning_rate=LR)\nLR = 7",
        "class C:\n    lr = float('2e-4')\nGRPOConfig(learning_rate=C.lr)",
    ],
)
def test_fires_names_are_resolved(tmp_path: Path, text: str) -> None:
    optimizer = facts(tmp_path, text).optimizer
    assert optimizer is not None
    assert optimizer.lr == pytest.approx(2e-4)


@pytest.mark.parametrize(
    "text",
    [
        "TrainingArguments('o', learning_rate=rate())",
        "import sys\nTrainingArguments('o', learning_rate=float(sys.argv[1]))",
        "for lr in (1, 2):\n    TrainingArguments('o', learning_rate=lr)",
        "LR = 1e-4\nif len(x) > 3:\n    LR = 2e-4\nTrainingArguments('o', learning_rate=LR)",
        "a = a + a\nTrainingArguments('o', learning_rate=a)",
        "def f(lr):\n    TrainingArguments('o', learning_rate=lr)\nf(1e-3)\nf(2e-3)",
    ],
)
def test_stays_quiet_what_is_computed_is_said_to_be(tmp_path: Path, text: str) -> None:
    found = reading(tmp_path, text)
    assert found.facts.optimizer is None or found.facts.optimizer.lr is None
    assert "learning_rate (computed in line " in "; ".join(one.why for one in found.not_checked)


def test_text_of_constants_is_put_together(tmp_path: Path) -> None:
    training = facts(tmp_path, "size = 7\nm = f'llama-{size}b'\nmodel = AutoModelForCausalLM.from_pretrained(m)\n"
                     "TrainingArguments('o', fp16=True)").training  # fmt: skip
    assert training is not None
    assert training.model_name == "llama-7b"


def test_how_the_model_is_loaded(tmp_path: Path) -> None:
    found = facts(
        tmp_path,
        "bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.float16)\n"
        "m = AutoModelForCausalLM.from_pretrained('x', torch_dtype=torch.bfloat16, quantization_config=bnb,\n"
        "    attn_implementation='flash_attention_2')\ntokenizer.pad_token = tokenizer.eos_token\n"
        "peft = LoraConfig(r=64, lora_alpha=16)\nSFTConfig(bf16=True)",
    )
    assert found.quantization is not None
    assert (found.quantization.bits, found.quantization.compute_dtype) == (4, "float16")
    assert found.precision is not None
    assert (found.precision.compute, found.precision.parameters) == ("bfloat16", "bfloat16")
    assert found.adapter is not None
    assert (found.adapter.rank, found.adapter.alpha) == (64, 16)
    assert found.attention is not None
    assert found.batching is not None
    assert found.batching.pad_token == found.batching.eos_token == "eos_token"


def test_the_trainers_of_trl_load_what_they_are_given_by_name(tmp_path: Path) -> None:
    text = "from trl import SFTConfig, SFTTrainer\nNAME = 'x/llama'\n"
    for given in ("model=NAME, args=SFTConfig('o')", "NAME, args=SFTConfig('o')"):
        training = facts(tmp_path, f"{text}SFTTrainer({given}).train()\n").training
        assert training is not None
        assert training.model_name == "x/llama"
    training = facts(tmp_path, f"{text}SFTTrainer(build(), args=SFTConfig('o')).train()\n").training
    assert training is not None
    assert training.model_name is None


def test_how_layers_are_checkpointed(tmp_path: Path) -> None:
    how = "m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={'use_reentrant': True})\n"
    training = facts(tmp_path, how + LOOP).training
    assert training is not None
    assert (training.gradient_checkpointing, training.reentrant) == (True, True)


def test_a_loop_of_its_own(tmp_path: Path) -> None:
    found = facts(tmp_path, LOOP + "s = torch.amp.GradScaler('cuda', init_scale=1024.)\n"
                  "with torch.autocast('cuda', dtype=torch.float16):\n    pass\nclip_grad_norm_(p, 0.5)")  # fmt: skip
    assert found.precision is not None
    assert (found.precision.compute, found.precision.scaler) == ("float16", "dynamic")
    assert found.precision.initial_scale == 1024
    assert found.optimizer is not None
    assert (found.optimizer.lr, found.optimizer.eps, found.optimizer.clip) == (3e-4, 1e-6, 0.5)
    plain = facts(tmp_path, LOOP)
    assert plain.precision is None
    assert plain.optimizer is not None
    assert plain.optimizer.clip is None  # a model that somebody wrote may train well without
    half = facts(tmp_path, LOOP.replace("Net()", "Net().half()")).precision
    assert half is not None
    assert (half.parameters, half.scaler) == ("float16", "none")


def test_lightning_and_accelerate(tmp_path: Path) -> None:
    lit = facts(tmp_path, "import lightning as L\nopt = torch.optim.SGD(p, lr=0.1)\n"
                "L.Trainer(precision='16-mixed', gradient_clip_val=0.5)")  # fmt: skip
    assert lit.precision is not None
    assert lit.precision.compute == "float16"
    assert lit.optimizer is not None
    assert (lit.optimizer.lr, lit.optimizer.clip) == (0.1, 0.5)
    quick = facts(tmp_path, "from accelerate import Accelerator\na = Accelerator(mixed_precision='fp16')\n" + LOOP)
    assert quick.precision is not None
    assert quick.precision.compute == "float16"


def test_the_card_answers_what_the_program_asks_it(tmp_path: Path) -> None:
    ask = "b = torch.cuda.is_bf16_supported()\nTrainingArguments('o', fp16=not b, bf16=b)"
    assert facts(tmp_path, ask).precision is None
    assert "--gpu tells" in left_out(tmp_path, ask)
    (tmp_path / "old.txt").write_text("torch==2.2.2\n")
    (tmp_path / "new.txt").write_text("torch==2.6.0\n")
    units = ask.replace("()", "(including_emulation=False)")
    for gpu, needs, text, dtype in (
        ("V100", "old.txt", ask, "float16"), ("A100", "old.txt", ask, "bfloat16"),
        ("V100", "new.txt", ask, "bfloat16"), ("V100", "new.txt", units, "float16"),
        ("V100", "new.txt", f"import unsloth\n{ask}", "float16"),
    ):  # fmt: skip
        found = reading(tmp_path, text, gpu=gpu, requirements=tmp_path / needs)
        assert found.facts.precision.compute == dtype
        assert not any(one.input == "config" for one in found.not_checked)


def test_findings_have_the_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("TrainingArguments(\n  'o',\n  fp16=True,\n  max_grad_norm=0.0,\n  run_name='x')\n")
    result = check("train.py")
    places = [(f.where.file, f.where.line) for f in result.findings if f.cause == "missing-gradient-clipping"]
    assert places == [("train.py", 4)]
    assert result.understood[:1] == ["train.py as transformers Trainer: fp16, no clipping; 1 key not used"]


def notebook(*cells: str) -> str:
    held = [{"cell_type": "code", "source": cell.splitlines(keepends=True)} for cell in cells]
    return json.dumps({"cells": [{"cell_type": "markdown", "source": ["# Training"]}, *held]})


def test_a_notebook_has_cells(tmp_path: Path) -> None:
    magic = "!pip install x\n%matplotlib inline\nimport torch\nfiles = !ls"
    train = "\nTrainingArguments('o', fp16=True,\n max_grad_norm=0, learning_rate=LR)"
    text = notebook(magic, "%%bash\nls -l", "LR = 2e-4", "what is it here", train)
    found = reading(tmp_path, text, "nb.ipynb")
    assert found.facts.optimizer.lr == 2e-4
    assert any("cell 5, line 1: not Python 3" in one.why for one in found.not_checked)
    result = check(tmp_path / "nb.ipynb")
    clip = next(f for f in result.findings if f.cause == "missing-gradient-clipping")
    assert (clip.where.cell, clip.where.line) == (6, 3)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.py", b"print 'hello'\n", "line 1: not Python 3"),
        ("a.py", b"x = 1\n  y = 2\n", "line 2: not Python 3"),
        ("a.py", b"x = '\0'\n", "a.py: "),
        ("a.py", b"x = " + b"(" * 5000 + b")" * 5000, "a.py: "),
        ("a.py", b"x = " + b"-" * 200_000 + b"1", "a.py: "),
        ("a.py", b"x" * (2**21 + 1), "characters"),
        ("a.py", b"\xff\xfe", "not UTF-8"),
        ("a.py", b"import torch\nprint(torch.ones(3))", "without a call that sets up a training"),
        ("a.ipynb", b"not json", "not a notebook"),
        ("a.ipynb", b"[]", "expected a list"),
        ("a.ipynb", b'{"cells": [1, null, {"cell_type": "code", "source": 3}]}', "without a call"),
        ("a.ipynb", b'{"cells": [{"cell_type": "code", "source": "a b"}]}', "cell 1, line 1: not Python 3"),
        ("a.ipynb", b"[" * 100_000, "not a notebook"),
    ],
)
def test_hostile_input_is_one_line(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnreadableInput) as refused:
        check(tmp_path / name)
    assert expected in one_line(refused.value)


def test_nothing_grows_without_end(tmp_path: Path) -> None:
    doubling = "\n".join(f"a{i} = a{i - 1} + a{i - 1}" for i in range(1, 60))
    found = reading(tmp_path, f"a0 = 'x'\n{doubling}\nTrainingArguments('o', fp16=True, optim=a59, lr=9**9**9)")
    assert found.facts.precision.compute == "float16"
    elifs = "if a == 1:\n    pass\n" + "".join(f"elif a == {i}:\n    pass\n" for i in range(300))
    assert facts(tmp_path, f"{elifs}TrainingArguments('o', fp16=True)").precision is not None


def test_a_folder_is_its_trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("TrainingArguments('o', bf16=True, deepspeed='ds.json')\n")
    Path("ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    Path("model.py").write_text("import torch\nclass Net(torch.nn.Module): pass\n")
    Path("old.py").write_text("TrainingArguments(print 'x')\n")
    for folder in ("venv/lib", ".git", "tests", "elsewhere"):
        Path(folder).mkdir(parents=True)
        (Path(folder) / "other.py").write_text("TrainingArguments('o', fp16=True)\n")
    Path("venv/pyvenv.cfg").touch()
    Path("elsewhere").rename(tmp_path.parent / f"{tmp_path.name}-outside")
    Path("link").symlink_to(tmp_path.parent / f"{tmp_path.name}-outside")
    result = check(".")
    assert result.understood[0].startswith(".: 1 training among ")
    assert [line.strip().partition(" as ")[0] for line in result.understood[1:-1]] == [
        "train.py", "ds.json, named by train.py,",
    ]  # fmt: skip
    assert any("old.py: line 1: not Python 3" in one.why for one in result.not_checked)


def test_a_folder_without_a_training_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("print(1)")
    with pytest.raises(UnreadableInput, match="no program, notebook"):
        check(tmp_path)


def test_a_program_is_never_patched(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text("TrainingArguments('o', fp16=True, max_grad_norm=0.0)\n")
    remedies = [f.remedy for f in check(file).findings if f.remedy and f.remedy.patch]
    assert remedies
    assert all(remedy.command is None for remedy in remedies)
