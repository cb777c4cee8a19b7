git clone https://github.com/vwxyzjn/cleanrl.git
cd cleanrl
python3 -m venv .venv && . .venv/bin/activate
pip install gymnasium==0.29.1 numpy==1.26.4 torch tensorboard tyro pygame 'moviepy<2'
python cleanrl/ppo.py --env-id CartPole-v1 --total-timesteps 150000
