"""Replays of a stream of batches by several planners, what they cost, and how that is shown.

`replay` and `in_time` plan, and `bench` runs replays; everything else decides or describes, and is pure.
"""
