"""Subcommands of `hydraulis` that ask a running service, as any other client does."""
