"""A sleeper that does not sleep."""


class RecordingSleeper:
    """Stands in for ``asyncio.sleep`` and returns at once; ``slept`` holds the durations in seconds, in order."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
