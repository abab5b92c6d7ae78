from tests.standin.plugin import standin, standin_library

__all__ = ["standin", "standin_library"]
