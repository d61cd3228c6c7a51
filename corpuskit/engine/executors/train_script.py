"""Training under Slurm: the batch script that `corpuskit train --sbatch` prints.

One job, one torchrun per node, started by srun; the ranks meet at the first node. What ends it:

- The time limit nears: the script hears USR1 first, has every rank save after the step in hand, and
  requeues the job.
- The clock of the run (health.stop_after_seconds) or a signal to a rank: they save, and the script
  requeues the job.
- A node dies: Slurm requeues the job (--requeue).
- A rank dies or fails: torchrun ends with it, and the script starts all of them again or not, by
  the codes that the ranks left; torchrun's own is always 1.
- scancel, preemption: the ranks save after the step in hand, if Slurm's KillWait is long enough.

| a rank ends with | started again |
|---|---|
| 2 the request is wrong, 76 data is broken, 77 the guard gave up | no: it would end so again |
| 75 "stopped by ..." | the job is requeued, if a checkpoint was saved since the start |
| 78 it hung | yes, but at most three times without a new checkpoint in between |
| 75 another rank ended, 1 an error, none: killed | if a checkpoint was saved since the start |

The first line that fits any rank counts: a rank that ends because another one did does not know the
reason. The files are read in OUTPUT/heartbeats, which all nodes see, as they do checkpoints.

Whatever happened, a start goes on from the newest checkpoint, and the losses are the same.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from corpuskit.engine.executors import python_path

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Allocation:
    """What a training job asks Slurm for.

    Attributes:
        nodes: how many.
        procs_per_node: ranks per node; one per GPU when there are any.
        gpus_per_node: GPUs per node; 0 is a run on CPUs.
        options: more of sbatch's, one word each, as they are.
        grace_seconds: how long before the time limit the ranks get the signal to save; a step and a
            checkpoint must fit.
    """

    nodes: int = 1
    procs_per_node: int = 1
    gpus_per_node: int = 0
    options: Sequence[str] = ()
    grace_seconds: int = 300


def train_script(
    settings: str, overrides: Sequence[str], name: str, output: str, allocation: Allocation
) -> str:
    """Return the batch script of a training run.

    Args:
        settings: path of the training file.
        overrides: values that replace some of it, `key=value`.
        name, output: of the run, from the file with its overrides.
    """
    train = [sys.executable, "-m", "corpuskit", "train", os.path.abspath(settings)]
    train += [word for override in overrides for word in ("--set", override)]
    name = re.sub(r"[^\w.-]", "-", name)
    options = [shlex.quote(option) for option in _options(name, allocation)]
    return _SCRIPT.format(
        options="\n".join(f"#SBATCH {option}" for option in options),
        command=shlex.join(["sbatch", f"train-{name}.sh"]),
        python_path=shlex.quote(python_path()),
        output=shlex.quote(os.path.abspath(output)),
        python=shlex.quote(sys.executable),
        nodes=allocation.nodes,
        procs=allocation.procs_per_node,
        train=shlex.join(train[1:]),
    )


def _options(name: str, allocation: Allocation) -> list[str]:
    share = f"--gpus-per-node={allocation.gpus_per_node}"
    if not allocation.gpus_per_node:
        share = f"--cpus-per-task={allocation.procs_per_node}"
    return [
        f"--job-name=corpuskit-train-{name}", f"--nodes={allocation.nodes}", "--ntasks-per-node=1",
        share, "--requeue", f"--signal=B:USR1@{allocation.grace_seconds}", "--open-mode=append",
        f"--chdir={os.getcwd()}", f"--output=train-{name}-%j.log", *allocation.options,
    ]  # fmt: skip


_SCRIPT = """\
#!/bin/bash
# Written by `corpuskit train --sbatch`. Submit it with: {command}
{options}
export PYTHONPATH={python_path}
export OMP_NUM_THREADS=1
# Each start of the ranks gets a store of its own; a reused one holds addresses of dead ranks.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
if [ -n "${{SLURM_CPUS_PER_TASK:-}}" ]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi

output={output}
newest() {{ ls "$output/checkpoints" 2>/dev/null | grep -x 'step-[0-9]*' | sort | tail -n 1; }}
# Each rank that ends leaves its exit code and the reason: torchrun's code is 1 whatever they were.
endings() {{ cat "$output"/heartbeats/rank-*.exit 2>/dev/null; }}

# The ranks meet at the first node. NodeAddr is its name, unless the cluster says otherwise.
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p' | head -n 1)
port=$((20000 + SLURM_JOB_ID % 10000))

warned='' stopped='' hangs=0
trap 'warned=yes; echo "the time limit is near"' USR1
trap 'stopped=yes' TERM  # the ranks hear it, too; wait for them

for start in $(seq 1000); do
    before=$(newest) meeting="$SLURM_JOB_ID-${{SLURM_RESTART_COUNT:-0}}-$start"
    echo "$(date +%T) start $start, restart ${{SLURM_RESTART_COUNT:-0}}, from ${{before:-step 0}}"
    rm -f "$output"/heartbeats/rank-*.exit
    # torchrun must not hear USR1, which would end it before its ranks have saved. --wait: ranks of
    # one node may end a moment before those of another have published the checkpoint.
    srun --nodes={nodes} --ntasks-per-node=1 --kill-on-bad-exit=0 --wait=60 \\
        bash -c 'trap "" USR1; exec "$@"' torchrun {python} -m torch.distributed.run \\
        --nnodes={nodes} --nproc-per-node={procs} --max-restarts=0 --rdzv-backend=c10d \\
        --rdzv-endpoint="$address:$port" --rdzv-id="$meeting" \\
        {train} &
    ranks=$!
    while kill -0 "$ranks" 2>/dev/null; do
        if [ -z "$warned" ]; then
            wait "$ranks"  # until they end, or a signal comes
        else
            # To the ranks, not to this script: they save after the step in hand, and end. Again and
            # again, for they may be starting.
            scancel --signal=USR1 "$SLURM_JOB_ID"
            sleep 5
        fi
    done
    wait "$ranks"
    code=$?
    if [ "$code" = 0 ] || [ -n "$stopped" ]; then exit "$code"; fi
    if ending=$(endings | grep -m 1 -E '^(2|76|77) '); then
        echo "$(date +%T) not started again: it would end so again: $ending"
        exit "${{ending%% *}}"
    fi
    after=$(newest)
    if [ "$after" != "$before" ]; then hangs=0; fi
    if [ -n "$warned" ] || endings | grep -q '^75 stopped by '; then
        if [ -z "$warned" ] && [ "$after" = "$before" ]; then exit 75; fi
        echo "$(date +%T) requeue, to go on from ${{after:-step 0}}"
        scontrol requeue "$SLURM_JOB_ID" || exit "$code"
        sleep 300 &
        wait $!  # Slurm ends this script
        exit "$code"
    fi
    if endings | grep -q '^78 '; then
        hangs=$((hangs + 1))
        if [ "$hangs" -gt 3 ]; then exit 78; fi
    elif [ "$after" = "$before" ]; then
        exit "$code"  # no further than last time
    fi
done
"""
