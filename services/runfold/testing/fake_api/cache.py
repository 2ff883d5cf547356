"""A prompt cache as the API has one: what a marker covers is written once and read from then on.

A token is four characters of JSON. Nothing is forgotten, and no prompt is too short.
"""

import json
from hashlib import sha256
from typing import Any

from runfold.testing.fake_api.markers import blocks_of, unmarked

LOOK_BACK = 20  # blocks before a marker in which an earlier entry is found


class PromptCache:
    """One for all conversations: what one has written another reads."""

    def __init__(self) -> None:
        self._written: set[str] = set()

    def usage(self, body: dict[str, Any]) -> dict[str, Any]:
        """The input side of the usage of an answer to ``body``, as the API spells it; then what is marked is in the cache."""
        blocks = list(blocks_of(body))
        digests, tokens = _prefixes(blocks)
        marked = [(at, block["cache_control"].get("ttl", "5m")) for at, block in enumerate(blocks) if "cache_control" in block]
        if "cache_control" in body:
            marked.append((len(blocks) - 1, body["cache_control"].get("ttl", "5m")))
        reached = max(
            (at for end, _ in marked for at in range(max(0, end - LOOK_BACK), end + 1) if digests[at] in self._written),
            default=-1,
        )
        read = covered = tokens[reached] if reached >= 0 else 0
        written = {"5m": 0, "1h": 0}
        for at, ttl in marked:
            written[ttl] += max(0, tokens[at] - covered)
            covered = max(covered, tokens[at])
            self._written.add(digests[at])
        return {
            "input_tokens": tokens[-1] - covered,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": covered - read,
            "cache_creation": {"ephemeral_5m_input_tokens": written["5m"], "ephemeral_1h_input_tokens": written["1h"]},
        }


def _prefixes(blocks: list[dict[str, Any]]) -> tuple[list[str], list[int]]:
    """For each block: the digest, and the number of tokens, of everything up to its end."""
    digest, total = sha256(), 0
    digests, tokens = [], []
    for block in blocks:
        text = json.dumps(unmarked(block), sort_keys=True)
        digest.update(text.encode())
        total += -(-len(text) // 4)
        digests.append(digest.hexdigest())
        tokens.append(total)
    return digests, tokens
