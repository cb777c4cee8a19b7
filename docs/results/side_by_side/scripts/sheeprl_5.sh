sheeprl -m seed=1,2,3 exp=ppo env=gym env.id=CartPole-v1 exp_name=seeds
pip install matplotlib
python plot.py
