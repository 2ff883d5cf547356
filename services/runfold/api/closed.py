"""Request bodies with a closed grammar: an unknown key is refused, for a misspelt limit would silently mean no limit.

null means the same as an absent key. Numbers are taken as written: true, "100" and 1.0 are not integers, and 0 is never a way to
say "unlimited".
"""

from difflib import get_close_matches
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from runfold.api.camel import camel
from runfold.api.problems import SHOWN, Problem, invalid, shown


class Closed(BaseModel):
    """A request's body."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, alias_generator=camel)

    @classmethod
    def read(cls, body: object) -> Self:
        """What parsed JSON holds. Raises `Problem` (422) that names the field."""
        if not isinstance(body, dict):
            raise Problem(422, "invalid_request", f"expected the body to be a JSON object, got {shown(body)}")
        known = [camel(name) for name in cls.model_fields]
        for key in body:
            if key not in known:
                raise _unknown(key, known)
        try:
            return cls.model_validate({key: value for key, value in body.items() if value is not None})
        except ValidationError as error:
            raise invalid(error.errors(include_url=False, include_context=False)[0]) from None


def _unknown(key: str, known: list[str]) -> Problem:
    close = get_close_matches(key[:SHOWN], known, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
    return Problem(422, "invalid_request", f"there is no field {shown(key)}; {hint}", field=key[:SHOWN])
