"""Test doubles that Runfold ships: use them to test your own agents."""

from runfold.testing.builders import model_request
from runfold.testing.fake_api import FakeMessagesApi, Hit
from runfold.testing.given import History, given
from runfold.testing.script import NONCE, Script
from runfold.testing.scripted import ScriptedStream
from runfold.testing.sleeper import RecordingSleeper

__all__ = ["NONCE", "FakeMessagesApi", "History", "Hit", "RecordingSleeper", "Script", "ScriptedStream", "given", "model_request"]
