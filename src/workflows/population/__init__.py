"""A population of learners: evolution and TD3 on a shared replay."""
