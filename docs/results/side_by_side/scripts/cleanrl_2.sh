cp cleanrl/ppo.py ppo_tiny.py
python ppo_tiny.py
