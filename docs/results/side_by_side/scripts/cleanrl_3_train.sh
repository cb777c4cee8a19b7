python cleanrl/dqn.py --env-id CartPole-v1 --save-model --total-timesteps 10500
