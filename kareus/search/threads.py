"""One thread of linear algebra for what fits surrogates."""

from contextlib import AbstractContextManager

from threadpoolctl import threadpool_limits


def one_thread() -> AbstractContextManager[object]:
    """Give a context in which NumPy's and SciPy's linear algebra use one thread.

    The surrogates' matrices are small: threads only wait for one another (on two cores a study took
    25 times as long), and the number of threads changes the last digits.
    """
    context: AbstractContextManager[object] = threadpool_limits(limits=1, user_api="blas")
    return context
