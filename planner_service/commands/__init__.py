"""Subcommands of `hydraulis` that come with the service."""
