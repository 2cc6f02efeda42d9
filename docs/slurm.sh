#!/bin/bash
# Trains a recipe on several nodes under Slurm, and resumes by itself after a time limit,
# a preemption or a node failure:
#
#   sbatch --nodes 4 docs/slurm.sh runs/t2t_vit_14 imagenet.t2t_vit_14 --data /data/imagenet
#
# The first argument is the run folder, on storage that all nodes share; the others are
# those of `t2t train`.
#SBATCH --job-name=t2t
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Five minutes before the time limit, Slurm sends this script SIGTERM: it checkpoints.
#SBATCH --signal=B:TERM@300
set -u

folder=$1
shift
first_machine=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
log_size=$(cat "$folder/log.txt" 2>/dev/null | wc -c)

# One torchrun per node. It starts one process per GPU, and restarts all of them up to
# three times if one dies.
srun torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" \
  --nproc-per-node gpu \
  --max-restarts 3 \
  --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$first_machine:29500" \
  -m t2t train "$@" --folder "$folder" &
training=$!

# Forward the signal to all processes of the job, which write a checkpoint and exit.
stopped=no
trap 'stopped=yes; scancel --signal=TERM "$SLURM_JOB_ID"; wait "$training"' TERM
wait "$training"

# On a preemption, Slurm may signal only the processes; their log then says so.
tail -c "+$((log_size + 1))" "$folder/log.txt" 2>/dev/null |
  grep -q '^Stopped at step' && stopped=yes

# Requeue only after a signal to stop: a run that failed would fail again.
if [ "$stopped" = yes ] && [ ! -f "$folder/result.json" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
