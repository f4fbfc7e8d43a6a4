#!/bin/bash
# sbatch --array=1-100 examples/deploy/slurm_array.sh RECIPE RUN_DIR
#SBATCH --job-name=curate
#SBATCH --nodes=1
#SBATCH --cpus-per-task=16
#SBATCH --time=12:00:00
#SBATCH --requeue
set -euo pipefail

# Each job of the array does its part of the input. One that is requeued or submitted again goes on where it stopped.
exec gristmill run "$1" --run-dir "$2" --shard slurm
