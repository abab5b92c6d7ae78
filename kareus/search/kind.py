"""The ways of searching a partition, by name."""

from enum import StrEnum


class SearchKind(StrEnum):
    """How a partition is searched; the values are the words of the command line."""

    KAREUS = "kareus"
    PUBLISHED = "published"
    RANDOM = "random"
