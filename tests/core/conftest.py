"""Property tests without a deadline: a loaded machine is no failure."""

from hypothesis import settings

settings.register_profile("suite", deadline=None)
settings.load_profile("suite")
