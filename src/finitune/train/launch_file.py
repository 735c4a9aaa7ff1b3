"""A script that starts `finitune train` on several nodes, by SLURM or by hand on each of them."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from pathlib import Path

from finitune.finding import UnreadableInput
from finitune.sources.text import reason

TEXT = """\
#!/usr/bin/env bash
#SBATCH --job-name={name}
#SBATCH --nodes={nodes}
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node={processes}
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#
# Written by finitune train --launch-file and checked for its syntax. It was not tried on a cluster.
#
#   sbatch {file}                                                under SLURM
#   NODES={nodes} HEAD=first-node NODE=0 bash {file}              by hand, on each node with its own NODE from 0 on
#
# The output directory must be one that all nodes see. A job that is killed or put back into the queue goes on from
# its last whole checkpoint.
set -euo pipefail

export NODES="${{SLURM_JOB_NUM_NODES:-${{NODES:-{nodes}}}}}"
export HEAD="${{HEAD:-}}"
if [ -z "$HEAD" ] && [ -n "${{SLURM_JOB_NODELIST:-}}" ]; then
    HEAD="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
fi
: "${{HEAD:?is the name of the first node}}"

start() {{
    torchrun --nnodes "$NODES" --nproc-per-node {processes} \\
        --node-rank "${{SLURM_NODEID:-${{NODE:?is the number of this node}}}}" \\
        --master-addr "$HEAD" --master-port "${{PORT:-29500}}" -m finitune train {config}
}}

if [ -n "${{SLURM_JOB_ID:-}}" ]; then
    export -f start
    srun --kill-on-bad-exit=1 bash -c start
else
    start
fi
"""


def write_launch_file(output: str | Path, config: str | Path, *, nodes: int, processes: int) -> Path:
    """Write the script; `processes` are those of each node, one for each of its GPUs.

    Raises UnreadableInput for a file that is there, or that cannot be written.
    """
    output = Path(output)
    if output.exists() or output.is_symlink():
        raise UnreadableInput(f"{output}: already there (expected a new file)")
    where = shlex.quote(str(Path(config).resolve()))
    text = TEXT.format(
        name=shlex.quote(Path(config).stem), nodes=nodes, processes=processes, file=output.name, config=where
    )  # fmt: skip
    shell = shutil.which("bash")
    if shell is not None:
        read = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True, check=False)
        if read.returncode:
            raise UnreadableInput(f"{output}: bash does not read what would be written ({read.stderr.strip()[:200]})")
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
        output.chmod(0o755)
    except OSError as error:
        raise UnreadableInput(f"{output}: {reason(error)} (expected to write there)") from None
    return output
