"""Answers of one model, as JSON."""

from fastapi import Response
from pydantic import BaseModel


def json_answer(value: BaseModel, *, status: int = 200) -> Response:
    """Answer with a value as the contract writes it, which FastAPI would check and write once more."""
    return Response(value.model_dump_json(), status_code=status, media_type="application/json")
