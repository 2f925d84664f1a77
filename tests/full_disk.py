"""A disk that takes no more, without one: the limit on the size of a file."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_file_beyond(size_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes; what writes more gets an `OSError`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
