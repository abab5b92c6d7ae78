"""What surrounds every page and fragment: where errors become a line the user can act on."""

import logging
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import streamlit as st

from kareus.errors import KareusError

P = ParamSpec("P")

logger = logging.getLogger(__name__)


def guarded(body: Callable[P, None]) -> Callable[P, None]:
    """Return the body with its errors drawn as a line; for pages and for fragments.

    An error of the product shows its own line. Any other is logged with its traceback and named.
    """

    @wraps(body)
    def draw(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            body(*args, **kwargs)
        except KareusError as error:
            show_error(error)
        except Exception:
            logger.exception("a page of the dashboard failed")
            st.error(
                "This page met an error of its own; its traceback is in the server's log. "
                "Reload the page, and report it if it stays.",
                icon=":material/bug_report:",
            )

    return draw


def show_error(error: KareusError) -> None:
    """Show an error's line."""
    st.error(escape(str(error)), icon=":material/error:")


def escape(text: str) -> str:
    """Return foreign text with the signs Markdown would read as markup escaped."""
    for sign in "\\`*_[]$<>#:~|":
        text = text.replace(sign, "\\" + sign)
    return text
