"""The node's daemon: reports what all ranks of a node hold, and hands each of them the plan and its part."""
