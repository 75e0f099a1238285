"""Listings: what the planner tells about the profiles it has."""

from planner_client.contract.scalars import PositiveInt, Returned


class ProfileSummary(Returned):
    """One profile in a list.

    Attributes
    ----------
    name
        What requests call it by.
    source
        Where its figures come from.
    model
        Name of the Transformer.
    device
        Type of GPU (or CPU).
    num_layouts
        Number of layouts that it has costs for.
    is_builtin
        Whether it comes with the planner.
    """

    name: str
    source: str
    model: str
    device: str
    num_layouts: PositiveInt
    is_builtin: bool


class ProfileList(Returned):
    """All profiles.

    Attributes
    ----------
    profiles
        Ascending by name.
    """

    profiles: list[ProfileSummary]
