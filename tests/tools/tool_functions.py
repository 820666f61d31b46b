"""Functions for the test of the function table."""


def area(width: float, height: float, unit: str = "m") -> dict:
    """The area of a rectangle.

    Args:
        width: One side.
        height: The other side.
        unit: Of both sides.
    """
    return {"area": width * height, "unit": unit}


async def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello {name}"


def _hidden() -> None:
    pass
