"""Building blocks that pages share."""
