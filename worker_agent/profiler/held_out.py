"""Samples set aside, to check a fit on what it never saw. Pure: no torch."""

from planner_client.contract import MicroBatchSample, ProfileMeasurement


def split_held_out(
    measurement: ProfileMeasurement, every: int = 4
) -> tuple[ProfileMeasurement, list[list[MicroBatchSample]]]:
    """Set every ``every``-th micro-batch of each layout aside, with all its repeats.

    Parameters
    ----------
    measurement
        What was measured.
    every
        Which ones; they are counted in the order in which they first appear.

    Returns
    -------
    tuple
        The measurement without them, and those of each layout, but for outliers: what disturbed them says nothing
        about the fit.

    Raises
    ------
    ValueError
        If a layout has too few micro-batches to leave three for the fit.
    """
    layouts, held_out = [], []
    for layout in measurement.layouts:
        numbers: dict[tuple[int, ...], int] = {}
        for sample in layout.samples:
            numbers.setdefault(tuple(sample.lengths), len(numbers))
        chosen = {lengths for lengths, number in numbers.items() if number % every == every - 1}
        if not chosen or len(numbers) - len(chosen) < 3:
            raise ValueError(
                f"{len(numbers)} different micro-batches are too few to hold some out; measure at least {every + 3}"
            )
        kept = [sample for sample in layout.samples if tuple(sample.lengths) not in chosen]
        layouts.append(layout.model_copy(update={"samples": kept}))
        held_out.append(
            [sample for sample in layout.samples if tuple(sample.lengths) in chosen and not sample.is_outlier]
        )
    return measurement.model_copy(update={"layouts": layouts}), held_out
