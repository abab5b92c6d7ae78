"""Settings that hold for all tests."""

from hypothesis import settings

# The same examples every time, and no deadline: the machine that tests may be busy.
settings.register_profile("kareus", deadline=None, derandomize=True)
settings.load_profile("kareus")
