"""Query parameters of lists."""

from typing import Annotated

from fastapi import Query

from planner_client.contract.scalars import MAX_ITERATION

MAX_PAGE = 1000

Limit = Annotated[int, Query(description="Most entries to return.", ge=1, le=MAX_PAGE)]
AfterName = Annotated[str, Query(description="Go on after this name.", max_length=128)]
AfterNumber = Annotated[int | None, Query(description="Go on after this number.", ge=0, le=MAX_ITERATION)]
