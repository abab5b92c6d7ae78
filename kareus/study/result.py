"""What a finished study gives back (values only)."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyResult:
    """What a finished study gives back.

    Attributes:
        study: Its id.
        measurements: Results stored, baselines included.
        compare: The comparison figures, as `kareus compare --json` prints them.
    """

    study: str
    measurements: int
    compare: dict[str, dict[str, object]]
