"""Ranks, process groups and collectives. No other folder of sslengine calls torch.distributed.

Every function here also works in a single process without a process group.
"""
