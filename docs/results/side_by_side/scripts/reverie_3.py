import reverie

agent = reverie.load("pretrained:cartpole")
env = agent.make_env()
observation, info = env.reset()
action = agent.act(observation)
print(action)
