"""What `finitune check` foresees of projects as people write them: scripts, notebooks, folders; half of them healthy.

    python benchmarks/projects_check.py [FOLDER]

FOLDER (`projects` unless given) holds one folder for each case, and `truth.yaml`: case -> `gpu`, and the `causes` of
which one should be foreseen; a case without causes is healthy. What is typed is `finitune check` with the only file of
the case, or with its folder. Exit 1 where less than 95 % of the faults are foreseen, or where healthy ones get an error
or more than one warning in all.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from finitune.finding import Finding, UnreadableInput
from finitune.preflight import check

PROJECTS = Path(__file__).parent / "projects"
ENOUGH = 0.95
MOST_WARNINGS = 1


def truth(folder: Path) -> Mapping[str, Mapping[str, Any]]:
    """Case -> what is true of it. Raises ValueError for a case without its folder, and the other way round."""
    told: Any = yaml.safe_load((folder / "truth.yaml").read_text(encoding="utf-8"))
    cases: dict[str, Mapping[str, Any]] = {name: said or {} for name, said in told.items()}
    here = {path.name for path in folder.iterdir() if path.is_dir()}
    if different := here ^ set(cases):
        raise ValueError(f"{folder}: {', '.join(sorted(different))}: a folder and an entry of truth.yaml are expected")
    return cases


def typed(case: Path) -> Path:
    """The only file of a case, or its folder."""
    files = [path for path in case.rglob("*") if path.is_file()]
    return files[0] if len(files) == 1 else case


def findings(case: Path, gpu: str | None) -> Sequence[Finding] | str:
    """What is found, or why nothing could be read."""
    try:
        return check(typed(case), gpu=gpu).findings
    except UnreadableInput as error:
        return str(error).replace(str(case), case.name)


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else PROJECTS
    try:
        cases = truth(folder)
    except (OSError, ValueError, yaml.YAMLError) as error:
        print(error, file=sys.stderr)
        return 2
    faulty = [name for name, said in cases.items() if said.get("causes")]
    foreseen, grave, wrong = 0, {"error": 0, "warning": 0}, list[str]()
    for name, said in cases.items():
        causes: Sequence[str] = said.get("causes", ())
        found = findings(folder / name, said.get("gpu"))
        if isinstance(found, str):
            wrong.append(f"  {name}: not read: {found}")
            continue
        if causes:
            hit = any(one.cause in causes for one in found)
            foreseen += hit
            others = ", ".join(sorted({one.cause for one in found})) or "nothing"
            wrong += [] if hit else [f"  {name}: not foreseen: {' or '.join(causes)}; found {others}"]
            continue
        for one in found:
            if one.severity in grave:
                grave[one.severity] += 1
                wrong.append(f"  {name}: {one.severity} {one.cause}: {one.message}")
    healthy = len(cases) - len(faulty)
    print(f"projects with a fault {len(faulty)}, foreseen {foreseen} ({foreseen / max(1, len(faulty)):.0%})")
    print(f"healthy projects {healthy}: errors {grave['error']}, warnings {grave['warning']}")
    print("\n".join(wrong))
    enough = foreseen >= ENOUGH * len(faulty)
    unread = any(": not read:" in line for line in wrong)
    return int(not enough or unread or grave["error"] > 0 or grave["warning"] > MOST_WARNINGS)


if __name__ == "__main__":
    sys.exit(main())
