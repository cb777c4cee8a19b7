python3 -m venv .venv
. .venv/bin/activate
pip install ./source  # commit 33b6366; a user types pip install sheeprl
pip install 'setuptools<81'
sheeprl exp=ppo env=gym env.id=CartPole-v1
