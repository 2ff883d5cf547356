"""How a run id is spelled. Only one spelling exists: another would have another Kafka key, and another partition."""

import re

PATTERN = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_RUN_ID = re.compile(PATTERN).fullmatch


def is_run_id(text: str) -> bool:
    """Whether ``text`` is a UUID in canonical lower-case spelling."""
    return _RUN_ID(text) is not None
