"""Subcommands of `hydraulis` that come with the agent."""
