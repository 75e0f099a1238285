"""What a trainer installs: the wire contract, the client, and plans turned into packed sequences."""
