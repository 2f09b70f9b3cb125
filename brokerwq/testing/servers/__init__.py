"""Brokers for tests and trials: found, started and stopped by the program that needs them."""
