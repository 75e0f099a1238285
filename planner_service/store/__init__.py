"""Where plans and profiles are kept."""
