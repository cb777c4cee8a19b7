python3 -m venv .venv
. .venv/bin/activate
pip install stable-baselines3
python sb3_1.py
