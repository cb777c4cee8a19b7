"""A population of learners: evolution and TD3 with a shared replay buffer."""
