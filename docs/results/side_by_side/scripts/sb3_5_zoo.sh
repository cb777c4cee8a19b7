pip install 'rl_zoo3[plots]'
for seed in 1 2 3; do python -m rl_zoo3.train --algo ppo --env CartPole-v1 --seed $seed -f logs; done
python -m rl_zoo3.plots.all_plots -a ppo -e CartPole-v1 -f logs -o logs/seeds
