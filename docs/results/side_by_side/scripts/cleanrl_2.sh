cp cleanrl/ppo.py ppo_tiny_flat.py  # or ppo_tiny_cnn.py, then edit it
python ppo_tiny_flat.py
