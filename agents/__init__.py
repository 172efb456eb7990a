"""Searchers behind one interface: PPO, random search and the oracle."""
