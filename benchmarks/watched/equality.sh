#!/usr/bin/env bash
# Compare the hashes of a run that is watched, killed half-way and resumed, and of a run without watch and kill.
#     bash benchmarks/watched/equality.sh <folder>
set -euo pipefail
export OMP_NUM_THREADS=1
python=.venv/bin/python folder=$1
watch=("$python" -m heapwatch --seconds 0.05 --share 0.2 --report "$folder/watch")
settings=(
    experiment=dreamer_catch model=debug device=cpu env.num_envs=4 buffer.capacity=2000
    training.batch_size=2 training.sequence_length=6 training.learning_starts=40 training.train_ratio=1.5
    training.warmup_steps=0 training.total_timesteps=2400 training.checkpoint_interval=400
    logger.tensorboard=false logger.progress=plain
)
mkdir -p "$folder"
"$python" scripts/train.py "${settings[@]}" "run_dir=$folder/plain" > "$folder/plain.log" 2>&1
"${watch[@]}" scripts/train.py "${settings[@]}" "run_dir=$folder/watched" > "$folder/watched.log" 2>&1 &
until [ -d "$folder/watched/checkpoints/step_000001200" ]; do sleep 0.2; done
kill -9 $!
wait $! || true
"$python" -c "import json, sys; report = json.load(open(sys.argv[1])); print(report['verdict'], report['samples'])" "$folder/watch/watch.json"
"${watch[@]}" scripts/train.py "resume=$folder/watched" > "$folder/resumed.log" 2>&1
(cd "$folder" && "$OLDPWD/$python" -m reverie.testing.fingerprint plain watched)
