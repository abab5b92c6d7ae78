"""Sizes that keep tables from jumping and from showing half a row."""

_ROW_HEIGHT_PX = 33  # of the base font size in .streamlit/config.toml
_BORDER_PX = 3


def table_height(num_rows: int, *, at_most: int) -> int:
    """Return the height in pixels that shows the header and so many whole rows."""
    return _ROW_HEIGHT_PX * (1 + max(1, min(num_rows, at_most))) + _BORDER_PX
