"""Python programs on a PATH of their own, for shell scripts that replace PYTHONPATH.

A launch script that sets PYTHONPATH hides what `finitune run` has put there. In front of its PATH stands a directory
with a link for every Python program that it may call; the link puts the bootstrap back and runs the real program.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

SHELLS = re.compile(r"^(ba|da|z|k)?sh$")
_SHIM = """#!/bin/sh
# Runs the program of this name that comes next on PATH, with finitune's bootstrap on PYTHONPATH again.
name=${0##*/}
rest=
IFS=:
for place in $PATH; do
  [ "$place" = "$FINITUNE_SHIMS" ] || rest="$rest:$place"
done
found=
for place in ${rest#:}; do
  if [ -x "$place/$name" ] && [ ! -d "$place/$name" ]; then found="$place/$name"; break; fi
done
unset IFS
[ -n "$found" ] || { echo "$name: command not found" >&2; exit 127; }
case ":$PYTHONPATH:" in
  *":$FINITUNE_BOOTSTRAP:"*) ;;
  *) PYTHONPATH="$FINITUNE_BOOTSTRAP${PYTHONPATH:+:$PYTHONPATH}"; export PYTHONPATH ;;
esac
exec "$found" "$@"
"""


@contextmanager
def path_with_shims(command: Sequence[str]) -> Generator[str, None, None]:
    """The PATH for `command`: with links in front where it is a shell script that replaces PYTHONPATH."""
    path = os.environ.get("PATH", os.defpath)
    if not _replaces_pythonpath(command):
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="finitune-shims-") as place:
        shim = Path(place) / ".shim"
        shim.write_text(_SHIM, encoding="ascii")
        shim.chmod(shim.stat().st_mode | stat.S_IXUSR)
        for name in _python_programs(path):
            (Path(place) / name).symlink_to(shim)
        os.environ["FINITUNE_SHIMS"] = place
        os.environ["FINITUNE_BOOTSTRAP"] = str(Path(__file__).parent / "bootstrap")
        try:
            yield f"{place}{os.pathsep}{path}"
        finally:
            del os.environ["FINITUNE_SHIMS"], os.environ["FINITUNE_BOOTSTRAP"]


def _replaces_pythonpath(command: Sequence[str]) -> bool:
    """True for a shell, or a shell script, in whose text PYTHONPATH is set."""
    program = shutil.which(command[0]) or command[0]
    is_shell = bool(SHELLS.match(Path(command[0]).name))
    if is_shell and "-c" in command:
        return any("PYTHONPATH=" in word for word in command)
    scripts = [word for word in command[1:] if Path(word).is_file()] if is_shell else [program]
    return any("PYTHONPATH=" in _text(script) for script in scripts if is_shell or _starts_a_shell(script))


def _starts_a_shell(script: str) -> bool:
    first = _text(script).split("\n", 1)[0]
    return first.startswith("#!") and bool(SHELLS.match(Path(first.split()[-1]).name))


def _text(script: str) -> str:
    try:
        with Path(script).open("rb") as file:
            return file.read(2**20).decode("utf-8", "replace")
    except OSError:
        return ""


def _python_programs(path: str) -> Generator[str, None, None]:
    """`python`, `python3` and whatever a shebang of Python starts, in the directories of the Pythons on PATH."""
    seen: set[str] = set()
    for place in path.split(os.pathsep):
        folder = Path(place)
        if not any((folder / name).exists() for name in ("python", "python3")):
            continue
        for file in sorted(folder.iterdir()):
            name = file.name
            if name in seen or not os.access(file, os.X_OK) or file.is_dir():
                continue
            if re.fullmatch(r"python(\d(\.\d+)?)?", name) or (b"python" in _first_line(file)):
                seen.add(name)
                yield name


def _first_line(file: Path) -> bytes:
    try:
        with file.open("rb") as opened:
            start = opened.read(200)
    except OSError:
        return b""
    return start.split(b"\n", 1)[0] if start.startswith(b"#!") else b""
