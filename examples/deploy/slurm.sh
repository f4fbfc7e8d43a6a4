#!/bin/bash
# sbatch examples/deploy/slurm.sh INPUT OUTPUT RUN_DIR
#SBATCH --job-name=curate
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --requeue
set -euo pipefail

# A directory that all nodes see: node 0 writes there where the others find it.
export RAY_PORT_BROADCAST_DIR="${RAY_PORT_BROADCAST_DIR:-$SLURM_SUBMIT_DIR}"

# The same script on every node: node 0 becomes the head and runs the pipeline, the others serve it. A job that Slurm
# requeues, or that is submitted again with the same RUN_DIR, goes on where it stopped.
srun --kill-on-bad-exit=1 python "$(dirname "$0")/curate.py" "$@"
