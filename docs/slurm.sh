#!/bin/bash
# Trains a recipe on several machines under Slurm, and goes on by itself after a time
# limit, a preemption or a machine that fails:
#
#   sbatch --nodes 4 docs/slurm.sh runs/t2t_vit_14 imagenet.t2t_vit_14 --data /data/imagenet
#
# The first argument is the run's folder, on storage that all machines see; the others
# are those of `t2t train`.
#SBATCH --job-name=t2t
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=12:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Five minutes before the end, this script is told, and has a checkpoint written.
#SBATCH --signal=B:TERM@300
set -u

folder=$1
shift
first_machine=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
log_size=$(cat "$folder/log.txt" 2>/dev/null | wc -c)

# One torchrun a machine; it starts a process a GPU, and starts them again up to three
# times when one of them dies.
srun torchrun \
  --nnodes "$SLURM_JOB_NUM_NODES" \
  --nproc-per-node gpu \
  --max-restarts 3 \
  --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$first_machine:29500" \
  -m t2t train "$@" --folder "$folder" &
training=$!

# All processes of the job get the signal; they save, and end.
stopped=no
trap 'stopped=yes; scancel --signal=TERM "$SLURM_JOB_ID"; wait "$training"' TERM
wait "$training"

# A preemption tells the processes, not this script: their log then ends in it.
tail -c "+$((log_size + 1))" "$folder/log.txt" 2>/dev/null |
  grep -q '^Stopped at step' && stopped=yes

# Only a run that was told to stop is queued again: one that failed needs a person.
if [ "$stopped" = yes ] && [ ! -f "$folder/result.json" ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
