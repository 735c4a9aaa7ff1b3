"""Settings changed inside their own text: what is meant changes, and not one other character."""

from __future__ import annotations

import contextlib
import json
import string
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as run_with
from hypothesis import strategies as st

from finitune.finding import UnreadableInput
from finitune.preflight import check
from finitune.repairs.repair import repair
from finitune.sources.configs import shell
from finitune.sources.configs.shell import SHELL
from finitune.sources.editing import shell_text, tree_text
from finitune.sources.editing.patching import patched, standings_each
from finitune.sources.editing.spelling import NoPlace, same, settled

HALF = {"fp16": False, "bf16": True}
quiet = run_with(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
names = st.text(string.ascii_lowercase + "_", min_size=1, max_size=6)
odd = st.sampled_from(["a b", "no", "1e-5", "#x", ""])
scalars = st.one_of(st.booleans(), st.integers(-5, 10**6), st.floats(1e-8, 1e3), st.none(), odd)
texts = st.text(string.ascii_letters + "\u00e9\u68af\U0001f600 :#'\"{}[],-", max_size=12)
inner = st.dictionaries(names, st.one_of(scalars, texts), max_size=3)
trees = st.dictionaries(names, st.one_of(scalars, texts, st.lists(scalars, max_size=3), inner), min_size=1, max_size=6)


def new_text(folder: Path, text: str, patch: dict[str, Any], name: str = "a.yaml") -> str:
    (folder / name).write_bytes(text.encode())
    files = patched(settled(patch, standings_each([folder / name])[0]))
    assert len(files) <= 1
    return files[0].after if files else text


def changed_lines(before: str, after: str) -> list[str]:
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    assert [line for line in old if line not in new] == [] or len(old) == len(new)
    return [line for line in new if line not in old]


@st.composite
def changes(draw: st.DrawFn, tree: dict[str, Any]) -> dict[tuple[str, ...], Any]:
    sections = [key for key, value in tree.items() if isinstance(value, dict)]
    place = draw(st.sampled_from([(), *((key,) for key in sections)]))
    held = tree[place[0]] if place else {k: v for k, v in tree.items() if not isinstance(v, dict | list)}
    name = draw(st.one_of(names, st.sampled_from(sorted(held)) if held else names))
    value = draw(st.one_of(scalars, texts))
    if place == () and isinstance(tree.get(name), dict | list):
        name += "_x"
    return {(*place, name): value}


def expected(tree: dict[str, Any], change: dict[tuple[str, ...], Any]) -> dict[str, Any]:
    out = json.loads(json.dumps(tree))
    for (*sections, name), value in change.items():
        inner = out
        for section in sections:
            inner = inner[section]
        inner[name] = value
    return out


@quiet
@given(st.data(), trees, st.sampled_from([None, 1, 2, 4, "\t"]), st.booleans(), st.booleans())
def test_json_changes_as_meant_and_nowhere_else(
    data: st.DataObject, tree: dict[str, Any], indent: Any, windows: bool, plain: bool
) -> None:
    text = json.dumps(tree, indent=indent, ensure_ascii=plain)
    text = text.replace("\n", "\r\n") if windows else text
    change = data.draw(changes(tree))
    after = tree_text.edited(text, change, "json")
    assert json.loads(after) == expected(tree, change)
    ((path, _),) = change.items()
    held = tree[path[0]] if len(path) > 1 else tree
    if path[-1] in held:
        back = tree_text.edited(after, {path: held[path[-1]]}, "json")
        assert json.loads(back) == tree
        assert len(after.split("\n")) == len(text.split("\n"))
    if windows and indent is not None:
        assert after.count("\n") == after.count("\r\n")


@st.composite
def commented(draw: st.DrawFn, text: str) -> str:
    """YAML with comments and blank lines between the lines and behind values."""
    lines: list[str] = []
    for line in text.splitlines():
        lines += draw(st.lists(st.sampled_from(["", "# note", "  # deep: note", "#fp16: true"]), max_size=1))
        behind = draw(st.sampled_from(["", "", "  # why"])) if "|" not in line and ">" not in line else ""
        lines.append(line + behind)
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    return newline.join(lines) + draw(st.sampled_from(["", newline]))


@quiet
@given(st.data(), trees, st.sampled_from([False, None]), st.sampled_from([2, 4]))
def test_yaml_changes_as_meant_and_keeps_every_comment(
    data: st.DataObject, tree: dict[str, Any], flow: bool | None, indent: int
) -> None:
    dumped = yaml.safe_dump(
        tree, default_flow_style=flow, indent=indent, sort_keys=False, allow_unicode=True, width=10**6
    )  # fmt: skip
    text = data.draw(commented(dumped))
    try:
        before = yaml.safe_load(text)
    except yaml.YAMLError:  # a comment inside a text of several lines
        return
    change = data.draw(changes(before) if before == tree else st.just({}))
    try:
        after = tree_text.edited(text, change, "yaml")
    except ValueError:
        return
    wanted = expected(before, change)
    assert repr(yaml.safe_load(after)) == repr(wanted) or yaml.safe_load(after) == wanted
    assert after.count("#") >= text.count("#") - sum(str(value).count("#") for value in tree.values())
    assert after.startswith(text[:0])
    if after != text:
        same_lines = [line for line in text.splitlines() if line in after.splitlines()]
        assert len(same_lines) >= len(text.splitlines()) - 1


flags = st.dictionaries(
    st.sampled_from(["fp16", "learning_rate", "max_steps", "output_dir", "weight_decay", "seed"]),
    st.sampled_from([True, "1e-3", "'x y'", '"$OUT"', "${LR:-2e-5}", "3", "False"]), min_size=1,
)  # fmt: skip


@quiet
@given(
    flags.map(lambda held: {"max_steps": "3", **held}), st.sampled_from([" ", " \\\n    "]),
    st.sampled_from(["", " 2>&1 | tee log", "  # done", " &"]),
    st.sampled_from(["python train.py", "torchrun --nproc_per_node 2 train.py", "deepspeed --num_gpus=2 t.py"]),
    st.sampled_from([("bf16", True), ("learning_rate", 2e-5), ("fp16", False), ("max_grad_norm", 1.0)]),
    st.booleans(),
)  # fmt: skip
def test_a_script_changes_in_one_flag(
    held: dict[str, Any], gap: str, tail: str, program: str, change: tuple[str, Any], array: bool
) -> None:
    words = [f"--{name}" + ("" if value is True else f" {value}") for name, value in held.items()]
    head = "#!/bin/bash\nOUT=o  # --fp16 in a comment\n"
    if array:
        text = head + "ARGS=(" + "\n  ".join(words) + ")\n" + program + ' "${ARGS[@]}"' + tail + "\n"
    else:
        text = head + program + gap + gap.join(words) + tail + "\n"
    name, value = change
    before = shell.parse(text, "a.sh")[SHELL][0]
    for after in shell_text.edited(text, before.command, name, value, {"fp16"}):
        try:
            now = shell.parse(after, "a.sh")[SHELL][0]
        except UnreadableInput:  # the only flag that says anything is gone
            return
        others = {key: said for key, said in before.flags.items() if key != name}
        if {key: said for key, said in now.flags.items() if key != name} == others:
            assert (
                name not in now.flags
                if value is False and now.flags.get(name) is None
                else same(now.flags[name], value)
            )
            return
    assert value is False


ENGINE = '{\n  "fp16": {\n    "enabled": true\n  },\n  "zero_optimization": {"stage": 2, "overlap_comm": true}\n}\n'


@pytest.mark.parametrize(
    ("name", "before", "patch", "after"),
    [
        ("a.json", '{"fp16": true, "output_dir": "o"}', HALF, '{"fp16": false, "bf16": true, "output_dir": "o"}'),
        ("a.json", ENGINE, {"zero_optimization.overlap_comm": False}, ENGINE.replace('comm": true', 'comm": false')),
        ("a.json", ENGINE, {"max_grad_norm": 1.0}, ENGINE.replace("true}\n", 'true},\n  "gradient_clipping": 1.0\n')),
        (
            "a.json",
            "\ufeff" + ENGINE.replace("\n", "\r\n"),
            {"fp16.loss_scale": 0},
            ENGINE.replace("true\n", 'true,\n    "loss_scale": 0\n', 1).replace("\n", "\r\n"),
        ),
        ("a.yaml", "fp16: yes  # V100\noutput_dir: o", HALF, "fp16: no  # V100\nbf16: true\noutput_dir: o"),
        ("a.yaml", "fp16: 'true'\noutput_dir: o\n", HALF, "fp16: false\nbf16: true\noutput_dir: o\n"),
        (
            "a.yaml",
            "base_model: m\nspecial_tokens: {eos_token: e}\n",
            {"pad_token": "p"},
            "base_model: m\nspecial_tokens: {eos_token: e, pad_token: p}\n",
        ),
        (
            "a.yaml",
            "compute_environment: X\nmixed_precision: bf16\n",
            {"bf16": False},
            'compute_environment: X\nmixed_precision: "no"\n',
        ),
        (
            "a.yaml",
            "base_model: m\nlearning_rate: 1e-2 # x\n",
            {"learning_rate": 2e-5},
            "base_model: m\nlearning_rate: 2.0e-5 # x\n",
        ),
        (
            "a.yaml",
            "base_model: m\nbf16: false\nload_in_4bit: true\n",
            {"bnb_4bit_compute_dtype": "bfloat16"},
            "base_model: m\nbf16: false\nload_in_4bit: true\nbnb_config_kwargs:\n  bnb_4bit_compute_dtype: bfloat16\n",
        ),
        (
            "a.yaml",
            "cutoff_len: 9\nflash_attn: sdpa\n",
            {"attn_implementation": "flash_attention_2"},
            "cutoff_len: 9\nflash_attn: fa2\n",
        ),
        (
            "a.sh",
            "LR=1e-2\npython t.py --learning_rate $LR\n",
            {"learning_rate": 2e-5},
            "LR=2e-5\npython t.py --learning_rate $LR\n",
        ),
        (
            "a.sh",
            "python t.py --learning_rate ${LR:-1e-2}\n",
            {"learning_rate": 2e-5},
            "python t.py --learning_rate ${LR:-2e-5}\n",
        ),
        ("a.sh", "python t.py \\\n  --fp16 \\\n  --seed 1\n", HALF, "python t.py \\\n  --bf16 \\\n  --seed 1\n"),
        ("a.sh", "python t.py --fp16=True --seed 1\n", HALF, "python t.py --fp16=False --bf16 True --seed 1\n"),
        ("a.sh", "python t.py --learning-rate 1 --fp16 2>&1\n", HALF, "python t.py --learning-rate 1 --bf16 2>&1\n"),
        ("a.sh", 'ARGS="--fp16 --seed 1"\npython t.py $ARGS\n', HALF, 'ARGS="--bf16 --seed 1"\npython t.py $ARGS\n'),
    ],
)
def test_each_format_is_patched_as_its_users_would(
    tmp_path: Path, name: str, before: str, patch: dict[str, Any], after: str
) -> None:
    assert new_text(tmp_path, before, patch, name) == after


@pytest.mark.parametrize(
    ("name", "text", "patch"),
    [
        ("a.yaml", "fp16: &b true\nuse_cpu: *b\noutput_dir: o\n", HALF),
        ("a.yaml", "fp16: &b true\nbf16: *b\noutput_dir: o\n", HALF),
        ("a.yaml", "x: &z {stage: 2}\nfp16: {enabled: true}\nzero_optimization: *z\n", {"zero_optimization.stage": 1}),
        ("a.yaml", "x: &z\n  stage: 2\nzero_optimization:\n  <<: *z\ny: *z\nfp16: {}\n", {"zero_optimization": 0}),
        ("a.yaml", "fp16: !!bool true\noutput_dir: o\n", HALF),
        ("a.yaml", "learning_rate: |\n  1\noutput_dir: o\n", {"learning_rate": 2e-5}),
        ("a.sh", "set -e\npython t.py --fp16 True\r\n", HALF),
        ("a.sh", "python t.py \r --fp16 True\r\n", HALF),
        ("a.sh", "for LR in 1 2; do python t.py --seed 1 --learning_rate $(cat lr); done\n", {"seed": 2}),
        ("a.sh", "python t.py --output_dir $FP16 --fp16 $FP16 $ALL\n", {"padding_side": "right"}),
    ],
)
def test_what_cannot_be_changed_alone_is_refused(tmp_path: Path, name: str, text: str, patch: dict[str, Any]) -> None:
    with pytest.raises((UnreadableInput, NoPlace)) as caught:
        new_text(tmp_path, text, patch, name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("before", "patch", "after"),
    [
        ("base: &b true\nfp16: *b  # why\noutput_dir: o\n", HALF, "base: &b true\nfp16: false  # why\nbf16: true\n"),
        ("fp16: &b true\nlearning_rate: 1.0e-5\n", HALF, "fp16: &b false\nbf16: true\nlearning_rate: 1.0e-5\n"),
        ("r: &r 1.0e-5\nlearning_rate: *r\n", {"learning_rate": 2e-5}, "r: &r 1.0e-5\nlearning_rate: 2.0e-5\n"),
        (
            "x: &x\n  enabled: true\nfp16:\n  <<: *x\ntrain_batch_size: 1\n", {"fp16": {"enabled": False}},
            "x: &x\n  enabled: true\nfp16:\n  <<: *x\n  enabled: false\ntrain_batch_size: 1\n",
        ),
        (
            "fp16: &x\n  enabled: true\n  loss_scale: 8\ntrain_batch_size: 1\n", {"fp16": {"enabled": False}},
            "fp16: &x\n  enabled: false\n  loss_scale: 8\ntrain_batch_size: 1\n",
        ),
    ],
)  # fmt: skip
def test_an_alias_gives_way_and_an_anchor_stays(tmp_path: Path, before: str, patch: dict[str, Any], after: str) -> None:
    assert new_text(tmp_path, before, patch, "a.yaml").startswith(after)


def test_a_script_of_windows_keeps_its_line_ends(tmp_path: Path) -> None:
    text = "#!/bin/bash\nLR=1e-5\npython t.py \\\n  --fp16 True \\\n  --learning_rate $LR\n"
    plain = new_text(tmp_path, text, {**HALF, "learning_rate": 2e-5}, "a.sh")
    assert new_text(tmp_path, text.replace("\n", "\r\n"), {**HALF, "learning_rate": 2e-5}, "b.sh") == plain.replace(
        "\n", "\r\n"
    )


def test_a_text_that_reads_back_otherwise_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_text, "edited", lambda text, *_: text.replace("o", "p"))
    with pytest.raises(UnreadableInput, match="does not read back as meant"):
        new_text(tmp_path, '{"fp16": true, "output_dir": "o"}', HALF, "a.json")


def test_a_program_is_given_no_flag_that_it_may_not_know(tmp_path: Path) -> None:
    for key in ("attn_implementation", "padding_side", "dtype", "packing"):
        with pytest.raises(NoPlace, match=key):
            new_text(tmp_path, "python t.py --fp16\n", {key: "x"}, "a.sh")


def test_a_configuration_speaks_before_the_files_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("padding_side: left\noutput_dir: o\n")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "tokenizer_config.json").write_text('{"padding_side": "left"}')
    found = standings_each([tmp_path / "a.yaml"], tmp_path / "m")[0]
    assert [one.standing.file for one in settled({"padding_side": "right"}, found)] == [str(tmp_path / "a.yaml")]
    (tmp_path / "a.yaml").write_text("output_dir: o\n")
    found = standings_each([tmp_path / "a.yaml"], tmp_path / "m")[0]
    assert [Path(one.standing.file).name for one in settled({"padding_side": "right"}, found)] == [
        "tokenizer_config.json"
    ]


def test_a_damaged_file_of_the_model_takes_no_patch_and_disturbs_nobody(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("fp16: true\noutput_dir: o\n")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "generation_config.json").write_text("{")
    assert [one.file for one in standings_each([tmp_path / "a.yaml"], tmp_path / "m")[0]] == [str(tmp_path / "a.yaml")]


HOSTILE = {
    "blanks": "python t.py --fp16" + " " * 60_000 + "--seed 1\n",
    "commands": "true\n" * 12_000 + "python t.py --fp16\n",
    "places": "python t.py " + "--fp16 x " * 6_000 + "\n",
    "quotes": "python t.py --fp16 " + "'" * 59_999,
    "brackets": "python t.py --fp16 " + "$(" * 30_000,
    "large": "python t.py --fp16\n" + "#" * 2**17,
}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_script_ends_in_one_line_or_a_patch(tmp_path: Path, name: str) -> None:
    with contextlib.suppress(UnreadableInput):
        new_text(tmp_path, HOSTILE[name], HALF, "a.sh")


VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\\n"
    "    actor_rollout_ref.rollout.n=1 \\\n    trainer.nnodes=1\n"
)
HYDRA = """defaults:
  - _self_
model:
  torch_dtype: float16
trainer:
  _target_: lightning.pytorch.Trainer
  precision: 16-mixed  # fast
  gradient_clip_val: null
optimizer:
  _target_: torch.optim.AdamW
  lr: 1.0e-4
"""


def test_a_dotted_flag_is_changed_in_its_word(tmp_path):
    (tmp_path / "run.sh").write_text(VERL)
    (finding,) = [one for one in check(tmp_path / "run.sh").findings if one.cause == "rl-group-std-zero"]
    assert finding.remedy.command
    repair("change-settings", config=tmp_path / "run.sh", apply=True)
    assert (tmp_path / "run.sh").read_text() == VERL.replace("rollout.n=1 ", "rollout.n=8 ")


def test_a_key_of_hydra_is_changed_where_it_stands(tmp_path):
    (tmp_path / "config.yaml").write_text(HYDRA)
    repair("clip-gradients", config=tmp_path / "config.yaml", apply=True)
    assert (tmp_path / "config.yaml").read_text() == HYDRA.replace("val: null", "val: 1.0")
