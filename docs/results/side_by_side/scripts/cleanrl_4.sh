cp cleanrl/ppo.py ppo_resume.py  # then edit it
python ppo_resume.py
