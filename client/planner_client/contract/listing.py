"""Listings: what the planner tells about the profiles it has."""

from planner_client.contract.scalars import PositiveInt, Returned


class ProfileSummary(Returned):
    """One profile in a list; ``is_builtin`` tells that it comes with the planner."""

    name: str
    source: str
    model: str
    device: str
    num_layouts: PositiveInt
    is_builtin: bool


class ProfileList(Returned):
    """All profiles, ascending by name."""

    profiles: list[ProfileSummary]
