"""Blocks that travel: a run that stops on one machine and goes on elsewhere."""
