for seed in 1 2 3; do python cleanrl/ppo.py --env-id CartPole-v1 --seed $seed --total-timesteps 20000; done
pip install matplotlib
python plot.py
