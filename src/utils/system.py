"""On which operating systems (`sys.platform`) Reverie runs, and what each of them lacks.

This is for people: code asks for what it needs (is there a /proc?), not for the name of the system.
"""


def refusal(platform: str) -> str | None:
    """Return why nothing runs on a system, None where it does.

    >>> refusal("linux") is None, refusal("darwin") is None
    (True, True)
    """
    if platform in ("win32", "cygwin"):
        return (
            f"Reverie runs on Linux and, with less, on macOS; this is Windows ({platform}), without the "
            "signals and processes it is built on. Install it in WSL 2: wsl --install."
        )
    return None


def lacks(platform: str) -> str | None:
    """Return what a system that is not refused lacks, in a sentence; None where everything works.

    >>> lacks("linux") is None
    True
    """
    if platform == "linux":
        return None
    name = "macOS" if platform == "darwin" else platform
    return (
        f"{name} was never tried: without /proc and glibc memory is judged by resident size, which what the "
        "allocator keeps hides, and a killed run may leave workers for some seconds"
    )
