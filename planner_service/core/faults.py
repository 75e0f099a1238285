"""Why a batch cannot be planned: the faults a caller can act on."""


class PlanningFault(Exception):  # noqa: N818 - a fault of the request, answered to the caller as a problem document
    """A request that cannot be planned as it is.

    Attributes
    ----------
    code
        Stable name of the fault, one of ``planner_client.contract.FaultCode``'s values.
    detail
        One sentence naming the value and the limit.
    remedy
        What to change.
    numbers
        The values that explain the fault, by name.
    """

    def __init__(self, code: str, detail: str, remedy: str, **numbers: object) -> None:
        super().__init__(f"{detail}; {remedy}")
        self.code = code
        self.detail = detail
        self.remedy = remedy
        self.numbers = numbers
