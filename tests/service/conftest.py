from tests.study.conftest import finished, service

__all__ = ["finished", "service"]
