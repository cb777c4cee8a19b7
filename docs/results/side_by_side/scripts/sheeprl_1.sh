python3 -m venv .venv
. .venv/bin/activate
pip install sheeprl
sheeprl exp=ppo env=gym env.id=CartPole-v1
