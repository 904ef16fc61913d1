"""Ranks, process groups and collectives. Nothing else in sslengine calls torch.distributed.

Every function here also works in a single process without a process group.
"""
