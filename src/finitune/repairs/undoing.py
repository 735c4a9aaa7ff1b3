"""The way back: what a repair made is removed, what it patched is put back, where nobody touched it since."""

from __future__ import annotations

import shutil
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.repairs.configs import restore
from finitune.repairs.outputs import MANIFEST, digest, digests, manifest_of, read_manifest, temporary
from finitune.repairs.result import RepairResult
from finitune.sources.text import section


def undo(path: str | Path) -> RepairResult:
    """Undo a repair: of a patched file, of a copy that a repair wrote, or of every patched file in a directory.

    Raises UnreadableInput when there is no repair to undo, or something has changed since.
    """
    place = Path(path)
    if place.is_dir() and not place.is_symlink():
        return _directory(place)
    place = place.with_name(place.name.removesuffix(f".{MANIFEST}"))
    if not manifest_of(place).is_file():
        raise UnreadableInput(f"{manifest_of(place)}: no such file (expected the manifest of a repair)")
    held = read_manifest(manifest_of(place))
    if held["undo_by"] == "restoring":
        return restore(place)
    if place.is_symlink() or not place.is_file() or digest(place) != held.get("after"):
        raise UnreadableInput(f"{place}: changed since the repair (expected it as the repair left it)")
    place.unlink()
    manifest_of(place).unlink()
    return RepairResult(repair="undo", output=str(place), changes=[], seed=0)


def _directory(directory: Path) -> RepairResult:
    """Patched files first: a copy that was patched afterwards is its own self again only then."""
    manifests = sorted(directory.glob(f"*.{MANIFEST}"))
    if manifests:
        done = [undo(manifest) for manifest in manifests]
        return RepairResult(repair="undo", output=", ".join(one.output for one in done), changes=[], seed=0)
    if not (directory / MANIFEST).is_file():
        raise UnreadableInput(f"{directory / MANIFEST}: no such file (expected the manifest of a repair)")
    held = read_manifest(directory / MANIFEST)
    found, files = digests(directory), section(held, "files")
    changed = [name for name in sorted({*found, *files}) if found.get(name) != files.get(name)]
    if changed:
        raise UnreadableInput(f"{directory / changed[0]}: changed since the repair (expected it as the repair left it)")
    doomed = temporary(directory)
    directory.rename(doomed)
    shutil.rmtree(doomed)
    return RepairResult(repair="undo", output=str(directory), changes=[], seed=0)
