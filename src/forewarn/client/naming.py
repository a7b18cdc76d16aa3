"""Names of scale set instances: one in documents, another on the network.

``Resources`` has ``{scale set}_{number}``; the instance's own host name is ``{prefix}`` with the number as six digits
of base 36. Applies to scale sets with uniform orchestration, whose instances are numbered.

Spec: R106
"""

from __future__ import annotations

import re

__all__ = ["scale_set_hostname", "scale_set_name"]

_BASE = 36
_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SIZE = 6
_HOSTNAME = re.compile(rf"(?P<prefix>.+)(?P<digits>[0-9A-Za-z]{{{_SIZE}}})")
_NAME = re.compile(r".+_(?P<number>0|[1-9][0-9]*)")


def scale_set_name(hostname: str, scale_set: str) -> str:
    """Return the name in ``Resources`` of the instance with that host name.

    Only the form can be checked: pass the host name that the scale set assigned, not one that was changed later.

    Args:
        hostname: Host name with or without domain, for example ``web00000A``.
        scale_set: Name of the scale set; the host name's prefix may be different.

    Raises:
        ValueError: It is not the host name of an instance, or `scale_set` is empty.
    """
    match = _HOSTNAME.fullmatch(hostname.partition(".")[0])
    if match is None or not scale_set:
        msg = (
            f"{hostname!r} of scale set {scale_set!r} is not the host name of an instance: "
            f"expected a prefix and {_SIZE} digits of base {_BASE}, for example web00000A"
        )
        raise ValueError(msg)
    return f"{scale_set}_{int(match['digits'], _BASE)}"


def scale_set_hostname(name: str, prefix: str) -> str:
    """Return the host name, in upper-case digits, of the instance with that name in ``Resources``.

    Args:
        name: Name in ``Resources``, for example ``web_10``.
        prefix: Scale set's prefix for host names, for example ``web``.

    Raises:
        ValueError: It is not the name of an instance, its number does not fit, or `prefix` is empty.
    """
    match = _NAME.fullmatch(name)
    # The length is checked first: `int` takes long for thousands of digits, and refuses even more with another error.
    number = int(match["number"]) if match is not None and len(match["number"]) <= len(str(_BASE**_SIZE)) else None
    if number is None or number >= _BASE**_SIZE or not prefix:
        msg = (
            f"{name!r} with prefix {prefix!r} is not the name of an instance: "
            f"expected the scale set, an underscore and a number below {_BASE**_SIZE}, for example web_10"
        )
        raise ValueError(msg)
    digits = ""
    for _ in range(_SIZE):
        number, digit = divmod(number, _BASE)
        digits = _DIGITS[digit] + digits
    return prefix + digits
