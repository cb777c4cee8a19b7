git clone https://github.com/vwxyzjn/cleanrl.git
cd cleanrl
uv pip install .
uv run python cleanrl/ppo.py --seed 1 --env-id CartPole-v0 --total-timesteps 50000
