"""Engines that run and train a population."""
