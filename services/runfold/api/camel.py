"""Names: snake_case here and in SQL, camelCase on the wire."""


def camel(name: str) -> str:
    """``token_budget`` → ``tokenBudget``."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)
