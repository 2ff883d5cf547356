"""A strict fake of the Messages API on loopback, for the real SDK to talk to.

``python -m runfold.testing.fake_api --script FILE`` runs one as a process of its own."""

from runfold.testing.fake_api.api import FakeMessagesApi
from runfold.testing.fake_api.ledger import Hit

__all__ = ["FakeMessagesApi", "Hit"]
