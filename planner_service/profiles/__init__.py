"""Built-in profiles: the figures published with Hydraulis, each file naming its source."""

from functools import cache
from importlib.resources import files

from planner_client.contract import Profile


@cache
def builtin_profiles() -> dict[str, Profile]:
    """Load the built-in profiles by name."""
    profiles = [
        Profile.model_validate_json(entry.read_bytes())
        for entry in files(__name__).iterdir()
        if entry.name.endswith(".json")
    ]
    return {profile.name: profile for profile in sorted(profiles, key=lambda profile: profile.name)}
