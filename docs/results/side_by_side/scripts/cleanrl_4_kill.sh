# kill -9 after 10 iterations, then the same command again
. .venv/bin/activate; export PYTHONPATH=.
cmd="python ppo_resume.py --total-timesteps 10240"
echo "+ $cmd"
$cmd > part.log &
pid=$!
for i in $(seq 400); do [ "$(grep -c SPS part.log)" -ge 10 ] && break; kill -0 $pid || exit 1; sleep 0.1; done
kill -9 $pid
wait $pid
rc=$?
cat part.log
echo "rc $rc"
python -c "import torch; s = torch.load('ppo_resume.pt'); print('checkpoint: iteration', s['iteration'], 'global_step', s['global_step'])"
echo "+ $cmd"
$cmd
python -c "import torch; s = torch.load('ppo_resume.pt'); print('checkpoint: iteration', s['iteration'], 'global_step', s['global_step'])"
