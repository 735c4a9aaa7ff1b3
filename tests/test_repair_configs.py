"""Patched files: all or none, the original beside them, and back to the last byte unless somebody wrote since."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as run_with
from hypothesis import strategies as st
from tests.sources import worlds
from tests.sources.worlds import one_line

from finitune.cli.main import main
from finitune.finding import UnreadableInput
from finitune.preflight import check
from finitune.repairs import configs as writing
from finitune.repairs.repair import repair
from finitune.repairs.undoing import undo

ENGINE = '{\n  "fp16": {"enabled": true},\n  "zero_optimization": {"stage": 2, "overlap_comm": true}\n}\n'
SCRIPT = "#!/bin/bash\npython t.py \\\n  --fp16 \\\n  --output_dir o \\\n  --deepspeed ds.json\n"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script that may be executed and the DeepSpeed file that it names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.sh").write_text(SCRIPT)
    (tmp_path / "a.sh").chmod(0o750)
    (tmp_path / "ds.json").write_text(ENGINE)
    return tmp_path


def seal(folder: Path) -> dict[str, tuple[int, int, str]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {
        str(path.relative_to(folder)): (
            path.stat().st_mode, path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in files
    }  # fmt: skip


def test_a_patch_is_told_and_nothing_is_written(run: Path) -> None:
    before = seal(run)
    result = repair("use-bfloat16", config="a.sh", patch=True)
    assert seal(run) == before
    assert result.schema == "finitune.repair/1"
    assert not result.written
    assert result.undo == ()
    assert {(c.file, c.key, c.before, c.after) for c in result.changes} == {
        ("a.sh", "fp16", True, False), ("a.sh", "bf16", None, True),
        ("ds.json", "fp16.enabled", True, False), ("ds.json", "bf16.enabled", None, True),
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("patch") is None, reason="needs the program patch")
@pytest.mark.parametrize("end", ["", "\n"])
def test_the_diff_is_one_that_other_programs_take(run: Path, end: str) -> None:
    (run / "a.sh").write_text(SCRIPT.rstrip("\n") + end)
    result = repair("use-bfloat16", config="a.sh", patch=True)
    subprocess.run(["patch", "-s", "-p0"], input=result.diff, text=True, check=True, cwd=run)
    by_others = (run / "a.sh").read_bytes(), (run / "ds.json").read_bytes()
    (run / "a.sh").write_text(SCRIPT.rstrip("\n") + end)
    (run / "ds.json").write_text(ENGINE)
    repair("use-bfloat16", config="a.sh", apply=True)
    assert by_others == ((run / "a.sh").read_bytes(), (run / "ds.json").read_bytes())


def test_applied_files_keep_their_mode_and_their_originals_and_come_back(run: Path) -> None:
    before = seal(run)
    result = repair("use-bfloat16", config="a.sh", apply=True)
    assert "--bf16" in (run / "a.sh").read_text()
    assert (run / "a.sh").stat().st_mode & 0o777 == 0o750
    assert (run / "a.sh.before-repair").read_text() == SCRIPT
    manifest = json.loads((run / "a.sh.finitune-repair.json").read_text())
    assert manifest["schema"] == "finitune.repair/1"
    assert [(c["key"], c["before"], c["after"]) for c in manifest["changes"]] == [
        ("fp16", True, False), ("bf16", None, True),
    ]  # fmt: skip
    assert set(result.undo) == {"a.sh", "ds.json"}
    undo("a.sh")
    undo(run / "ds.json.finitune-repair.json")
    assert seal(run) == before


def test_a_directory_is_undone_as_a_whole(run: Path) -> None:
    before = seal(run)
    repair("use-bfloat16", config="a.sh", apply=True)
    assert main(["repair", "--undo", str(run)]) == 0
    assert seal(run) == before
    assert main(["repair", "--undo", str(run)]) == 2


def test_a_second_repair_keeps_the_first_original(run: Path) -> None:
    before = seal(run)
    repair("disable-overlap-comm", config="a.sh", apply=True)
    repair("use-bfloat16", config="a.sh", apply=True)
    manifest = json.loads((run / "ds.json.finitune-repair.json").read_text())
    assert [c["key"] for c in manifest["changes"]] == ["zero_optimization.overlap_comm", "fp16.enabled", "bf16.enabled"]
    assert [c["remedy"] for c in manifest["changes"]] == ["disable-overlap-comm", "use-bfloat16", "use-bfloat16"]
    undo(run)
    assert seal(run) == before


@pytest.mark.parametrize("how", ["--patch", "--apply"])
def test_nothing_to_change_is_said_so(run: Path, how: str, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "sound.json").write_text('{"bf16": {"enabled": true}, "gradient_clipping": 1.0}')
    before = seal(run)
    assert main(["repair", "--config", "sound.json", how]) == 0
    assert capsys.readouterr() == ("", "finitune: nothing to change\n")
    assert seal(run) == before


def test_what_somebody_wrote_since_is_not_thrown_away(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repair("use-bfloat16", config="a.sh", apply=True)
    (run / "ds.json").write_text(ENGINE + "\n")
    before = seal(run)
    assert main(["repair", "--undo", "ds.json"]) == 2
    assert "ds.json: changed since the repair" in one_line(ValueError(capsys.readouterr().err.strip()))
    with pytest.raises(UnreadableInput, match="has changed since"):
        repair("disable-overlap-comm", config="ds.json", apply=True)
    (run / "a.sh.before-repair").write_text("other")
    with pytest.raises(UnreadableInput, match="not the original any more"):
        undo("a.sh")
    (run / "a.sh.before-repair").write_text(SCRIPT)
    assert seal(run).keys() == before.keys()


def test_a_crash_between_the_manifest_and_the_rename_is_undone(run: Path) -> None:
    repair("use-bfloat16", config="a.sh", apply=True)
    (run / "a.sh").write_text(SCRIPT)
    undo("a.sh")
    assert not (run / "a.sh.before-repair").exists()
    assert (run / "a.sh").read_text() == SCRIPT


@pytest.mark.parametrize("step", ["_stage", "_keep", "replace", "second replace"])
@pytest.mark.parametrize("earlier", [False, True])
def test_all_files_or_none(run: Path, monkeypatch: pytest.MonkeyPatch, step: str, earlier: bool) -> None:
    if earlier:
        repair("disable-overlap-comm", config="a.sh", apply=True)
    before = {name: entry[2] for name, entry in seal(run).items()}
    calls: list[int] = []
    real = Path.replace

    def full_disk(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def fails_at_last(self: Path, target: Path) -> Path:
        if Path(target).name in ("a.sh", "ds.json"):
            calls.append(1)
            if len(calls) == (2 if step == "second replace" else 1):
                raise OSError(28, "No space left on device")
        return real(self, target)

    if "replace" in step:
        monkeypatch.setattr(Path, "replace", fails_at_last)
    else:
        monkeypatch.setattr(writing, step, full_disk)
    with pytest.raises(OSError, match="No space"):
        repair("use-bfloat16", config="a.sh", apply=True)
    monkeypatch.undo()
    assert {name: entry[2] for name, entry in seal(run).items()} == before
    assert (run / "a.sh").stat().st_mode & 0o777 == 0o750


def test_a_disk_that_forgets_is_noticed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"" if self.suffix == ".tmp" else real(self))
    with pytest.raises(UnreadableInput, match="did not read back"):
        repair("use-bfloat16", config="a.sh", apply=True)
    monkeypatch.undo()
    assert sorted(path.name for path in run.iterdir()) == ["a.sh", "ds.json"]


GOOD, BAD = "python t.py --bf16 --learning_rate 1e-5", "python t.py --bf16 --learning_rate 6e-3"
MENDED = "python t.py --bf16 --learning_rate 2e-5"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{GOOD}\n{BAD}\n", f"{GOOD}\n{MENDED}\n"),
        (f"{BAD}\n{GOOD}\n", f"{MENDED}\n{GOOD}\n"),
        (f"{GOOD}; {BAD}\n", f"{GOOD}; {MENDED}\n"),
        (f"{BAD}\n{GOOD}\n{BAD}\n", f"{MENDED}\n{GOOD}\n{MENDED}\n"),
        (  # a variable of one launch, and one of two that both need it
            f"LR=6e-3\n{GOOD}\npython t.py --bf16 --learning_rate $LR\n",
            f"LR=2e-5\n{GOOD}\npython t.py --bf16 --learning_rate $LR\n",
        ),
        (
            'A="--bf16 --learning_rate 6e-3"\npython t.py $A\npython u.py $A\n',
            'A="--bf16 --learning_rate 2e-5"\npython t.py $A\npython u.py $A\n',
        ),
    ],
)
def test_the_launch_that_the_finding_names_is_patched(run: Path, before: str, after: str) -> None:
    text = "#!/bin/sh\n" + before
    (run / "a.sh").write_text(text)
    result = check("a.sh")
    (finding,) = [one for one in result.findings if one.cause == "lr-too-high"]
    assert finding.remedy is not None
    assert finding.remedy.command == f"finitune repair {finding.remedy.name} --config a.sh --patch"
    repair(finding.remedy.name, config="a.sh", apply=True)
    assert (run / "a.sh").read_text() == "#!/bin/sh\n" + after
    assert "lr-too-high" in check("a.sh").passed


def test_a_place_that_another_launch_shares_is_not_changed_for_one(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # LoRA takes a higher learning rate, so the two launches need different ones
    text = 'A="--bf16 --learning_rate 6e-3"\npython t.py $A --use_peft True\npython t.py $A\n'
    (run / "a.sh").write_text(text)
    assert [one.remedy and one.remedy.command for one in check("a.sh").findings] == [None, None]
    before = seal(run)
    assert main(["repair", "--config", "a.sh", "--apply", "--unsafe"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "a.sh: cannot be patched here: no place in the script sets learning_rate for the launch in line 2" in err
    assert seal(run) == before


def test_only_safe_patches_of_errors_and_warnings_are_taken_unasked(run: Path) -> None:
    (run / "c.yaml").write_text("output_dir: o\nlearning_rate: 0.9\ngroup_by_length: true\n")
    result = repair(config="c.yaml", patch=True)
    assert not result.changes
    assert result.not_applied == ["lower-learning-rate: unsafe, read what it changes; --unsafe takes it"]
    assert {c.key for c in repair(config="c.yaml", patch=True, unsafe=True).changes} == {"learning_rate"}


def test_flags_over_a_file_are_patched_where_they_stand(run: Path) -> None:
    (run / "c.yaml").write_text("output_dir: o\nlearning_rate: 6e-3\nbf16: true\nmax_grad_norm: 0\n")
    (run / "a.sh").write_text("#!/bin/sh\ntrl sft --config c.yaml --learning_rate 5e-3\n")
    repair(config="a.sh", apply=True, unsafe=True)
    assert (run / "a.sh").read_text() == "#!/bin/sh\ntrl sft --config c.yaml --learning_rate 2e-5\n"
    mended = "output_dir: o\nlearning_rate: 6e-3\nbf16: true\nmax_grad_norm: 1.0\n"
    assert (run / "c.yaml").read_text() == mended
    (run / "c.yaml").write_text("output_dir: o\nfp16: true\n")
    (run / "a.sh").write_text("#!/bin/sh\ntrl sft --config c.yaml --learning_rate 1e-5\n")
    for name in ("a.sh", "c.yaml"):
        (run / f"{name}.before-repair").unlink()
        (run / f"{name}.finitune-repair.json").unlink()
    repair("use-bfloat16", config="a.sh", apply=True)
    assert (run / "a.sh").read_text() == "#!/bin/sh\ntrl sft --config c.yaml --learning_rate 1e-5\n"
    assert (run / "c.yaml").read_text() == "output_dir: o\nfp16: false\nbf16: true\n"


OVER = {
    "a.yaml": "learning_rate: 1.0e-1  # of the recipe\nfp16: true\nbf16: true\noutput_dir: o\n",
    "a.py": (
        "from trl import ScriptArguments, SFTConfig, SFTTrainer, TrlParser\n"
        "script, args = TrlParser((ScriptArguments, SFTConfig)).parse_args_and_config()\n"
        "SFTTrainer(model='a/b', args=args).train()\n"
    ),
    "a.sh": "torchrun a.py --config a.yaml --learning_rate 0.5\n",
}


def test_a_setting_typed_over_a_file_is_patched_where_it_decides(run: Path) -> None:
    for name, text in OVER.items():
        (run / name).write_text(text)
    changes = {(c.file, c.key) for c in repair(config="a.sh", patch=True, gpu="A100", unsafe=True).changes}
    assert changes == {("a.sh", "learning_rate"), ("a.yaml", "fp16")}
    found = [(one.cause, one.where.file, one.where.line) for one in check("a.sh", gpu="A100").findings]
    assert found == [("config-disagreement", "a.yaml", 2), ("lr-too-high", "a.sh", 1)]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("repair", "Nothing to repair"),
        ("repair --config a.sh", "--patch or --apply is needed"),
        ("repair use-bfloat16 --config a.sh", "--patch or --apply is needed"),
        ("repair use-bfloat16 --config a.sh --patch --apply", "one of the two"),
        ("repair use-bfloat16 --config absent.json --patch", "absent.json: no such file"),
        ("repair reinit-token-rows --model m --patch", "writes a copy"),
        ("repair float32-modules --config a.sh --patch", "nothing to set here"),
        ("repair pad-right --config a.sh --patch", "no file here takes it"),
        ("repair use-bfloat16 --config link.json --apply", "a symbolic link"),
        ("repair use-bfloat16 --config kept.json --apply", "already there"),
        ("repair --undo a.sh", "no such file (expected the manifest of a repair)"),
        ("repair --undo a.sh --patch", "--undo stands alone"),
        ("repair --undo of-another.json", "expected a manifest that finitune repair can undo"),
        ("repair --undo cut-short.json", "not JSON"),
        ("repair cast-weights --model m --output o", "--dtype is needed"),
        (
            "repair cast-weights --model m --output o --dtype int8",
            "expected one of float64, float32, float16, bfloat16",
        ),
        ("repair cast-weights --model m --output o --dtype float32 --modules x", "no tensor of floats"),
        ("repair reinit-token-rows --model m --output o --tokens 6,7 --like 1", "expected one for each of 2 tokens"),
        ("repair reinit-token-rows --model m --output o --tokens 6 --like 64", "--like: 64 is outside"),
        ("repair reinit-token-rows --model m --output o --tokens 6 --like 6", "row 6 was never trained"),
    ],
)
def test_wrong_usage_is_one_line_and_writes_nothing(
    run: Path, words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    worlds.model(run / "m")
    (run / "kept.json").write_text(ENGINE)
    (run / "kept.json.before-repair").write_text("mine")
    (run / "link.json").symlink_to("ds.json")
    (run / "of-another.json").write_text(ENGINE)
    (run / "of-another.json.finitune-repair.json").write_text('{"schema": "x/1"}')
    (run / "cut-short.json").write_text(ENGINE)
    (run / "cut-short.json.finitune-repair.json").write_text('{"sch')
    before = seal(run)
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert said in err
    assert seal(run) == before


HOSTILE = [
    b"", b"{", b"\xff\xfe", b"fp16: [", b"a: &a [*a]\nfp16: true\n", b"{" + b'"a":{' * 5000, b"fp16: true\n\tbf16: x\n",
    b"python t.py --fp16 '", b"#!/bin/sh\n" + b"(" * 3000 + b"python t.py --fp16", b'{"fp16": {"enabled": "maybe"}}',
    b"base_model: m\nbase_model: n\nfp16: true\nfp16: true\n", b'{"fp16": true, "fp16": {"enabled": 1}}',
    b"output_dir: o\nfp16: yes\n---\nfp16: no\n", b"fp16: true\noutput_dir: \xf0\x9f\x98\x80 # \xe6\xa2\xaf\n",
]  # fmt: skip


notes = st.text(max_size=80).map("fp16: true\n{}".format).map(lambda text: text.encode(errors="ignore"))


@run_with(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(st.sampled_from(HOSTILE), st.binary(max_size=200), notes),
    st.sampled_from(["a.json", "a.yaml", "a.sh"]),
)  # fmt: skip
def test_hostile_files_are_refused_or_come_back(
    tmp_path_factory: pytest.TempPathFactory, raw: bytes, name: str
) -> None:
    folder = tmp_path_factory.mktemp("hostile")
    file = folder / name
    file.write_bytes(raw)
    before = seal(folder)
    code = main(["repair", "use-bfloat16", "--config", str(file), "--apply"])
    assert code in (0, 2)
    if code == 2:
        assert seal(folder) == before
    elif seal(folder) != before:
        assert main(["repair", "--undo", str(file)]) == 0
        assert seal(folder) == before


keys = st.dictionaries(
    st.sampled_from(["output_dir", "seed", "run_name", "note", "a_flag"]),
    st.one_of(st.booleans(), st.integers(0, 9), st.sampled_from(["a b", "o"])), min_size=1,
)  # fmt: skip


@run_with(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(keys, st.sampled_from(["json", "yaml", "sh"]), st.sampled_from(["", "# note\n", "\n"]), st.booleans())
def test_patch_then_undo_is_the_same_file(
    tmp_path_factory: pytest.TempPathFactory,
    held: dict[str, object],
    kind: str,
    comment: str,
    bom: bool,
) -> None:
    folder = tmp_path_factory.mktemp("back")
    file = folder / f"a.{kind}"
    held = {"fp16": True, **held, "learning_rate": 1e-4}
    if kind == "json":
        text = json.dumps(held, indent=2)
    elif kind == "yaml":
        text = comment + "".join(f"{key}: {json.dumps(value)}  # {key}\n{comment}" for key, value in held.items())
    else:
        text = f"#!/bin/sh\n{comment}python t.py" + "".join(f" \\\n  --{k} '{v}'" for k, v in held.items()) + "\n"
    file.write_bytes((b"\xef\xbb\xbf" if bom and kind != "sh" else b"") + text.encode())
    before = seal(folder)
    assert main(["repair", "use-bfloat16", "--config", str(file), "--apply"]) == 0
    assert seal(folder) != before
    assert file.read_bytes().startswith(b"\xef\xbb\xbf") == (bom and kind != "sh")
    assert main(["repair", "--undo", str(file)]) == 0
    assert seal(folder) == before


@pytest.mark.parametrize(
    ("before", "remedy", "gpu", "after"),
    [
        ("16-true", "float32-trainable-weights", "A100", "16-mixed"),
        ("bf16-mixed", "use-float16", "V100", "16-mixed"),
        ("16-mixed", "use-float32", "V100", "32-true"),
    ],
)
def test_lightning_has_one_word_for_the_dtype(tmp_path: Path, before: str, remedy: str, gpu: str, after: str) -> None:
    text = (
        "trainer:\n  precision: {}  # why\noptimizer:\n  class_path: torch.optim.AdamW\n  init_args:\n    lr: 1.0e-4\n"
    )
    file = tmp_path / "a.yaml"
    file.write_text(text.format(before))
    repair(remedy, config=[file], gpu=gpu, apply=True)
    assert file.read_text() == text.format(after)
