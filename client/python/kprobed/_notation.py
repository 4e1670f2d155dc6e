"""What people write for the numbers of a field, as ``kprobectl`` shows them."""

from __future__ import annotations

import errno
import ipaddress
from collections.abc import Callable, Mapping

from .v1 import event_pb2

# Errors that stay in the kernel (include/linux/errno.h), and the usual one of two names.
_ERRORS: Mapping[int, str] = errno.errorcode | {
    35: "EDEADLK", 95: "EOPNOTSUPP",
    512: "ERESTARTSYS", 513: "ERESTARTNOINTR", 514: "ERESTARTNOHAND", 515: "ENOIOCTLCMD", 516: "ERESTART_RESTARTBLOCK",
    517: "EPROBE_DEFER", 518: "EOPENSTALE", 519: "ENOPARAM", 521: "EBADHANDLE", 522: "ENOTSYNC", 523: "EBADCOOKIE",
    524: "ENOTSUPP", 525: "ETOOSMALL", 526: "ESERVERFAULT", 527: "EBADTYPE", 528: "EJUKEBOX", 529: "EIOCBQUEUED",
    530: "ERECALLCONFLICT", 531: "ENOGRACE",
}  # fmt: skip

_MINOR_BITS = 20


# Flags of `open` (include/uapi/asm-generic/fcntl.h), those of several bits before their parts.
_OPEN_FLAGS: Mapping[int, str] = {
    0o100: "O_CREAT", 0o200: "O_EXCL", 0o400: "O_NOCTTY", 0o1000: "O_TRUNC", 0o2000: "O_APPEND", 0o4000: "O_NONBLOCK",
    0o4010000: "O_SYNC", 0o10000: "O_DSYNC", 0o20000: "O_ASYNC", 0o40000: "O_DIRECT", 0o100000: "O_LARGEFILE",
    0o20200000: "O_TMPFILE", 0o200000: "O_DIRECTORY", 0o400000: "O_NOFOLLOW", 0o1000000: "O_NOATIME",
    0o2000000: "O_CLOEXEC", 0o10000000: "O_PATH",
}  # fmt: skip


def signed(value: int, width: int) -> int:
    """The number with these bits and a sign."""
    bits = 8 * width
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def _swapped(value: int, width: int) -> int:
    return int.from_bytes(value.to_bytes(width, "little"), "big")


def _ipv4(value: int, width: int) -> str | None:
    return str(ipaddress.IPv4Address(value.to_bytes(4, "little"))) if width == 4 else None


def _open_flags(value: int, _: int) -> str:
    names = []
    if value & 3 != 3:
        names.append(("O_RDONLY", "O_WRONLY", "O_RDWR")[value & 3])
        value &= ~3
    for bits, name in _OPEN_FLAGS.items():
        if value & bits == bits:
            names.append(name)
            value &= ~bits
    return "|".join(names + [f"{value:#x}"] * (value != 0))


_TEXTS: Mapping[int, Callable[[int, int], str | None]] = {
    event_pb2.FIELD_NOTATION_ERRNO: lambda value, width: _ERRORS.get(-signed(value, width)),
    event_pb2.FIELD_NOTATION_NETWORK_ORDER: lambda value, width: str(_swapped(value, width)),
    event_pb2.FIELD_NOTATION_IPV4: _ipv4,
    event_pb2.FIELD_NOTATION_DEVICE: lambda value, _: f"{value >> _MINOR_BITS}:{value & ((1 << _MINOR_BITS) - 1)}",
    event_pb2.FIELD_NOTATION_OCTAL: lambda value, _: f"0{value:o}" if value else "0",
    event_pb2.FIELD_NOTATION_BOOL: lambda value, _: {0: "false", 1: "true"}.get(value),
    event_pb2.FIELD_NOTATION_OPEN_FLAGS: _open_flags,
}


def text_of(notation: int, names: Mapping[int, str], value: object, width: int) -> str | None:
    """What people write for a value; ``None`` if that is the value itself."""
    if isinstance(value, list) and notation == event_pb2.FIELD_NOTATION_IPV6 and len(value) == 16:
        return None if None in value else str(ipaddress.IPv6Address(bytes(value)))
    if not isinstance(value, int):
        return None
    bits = value & ((1 << 8 * width) - 1)
    if notation == event_pb2.FIELD_NOTATION_NAMES:
        return names.get(signed(bits, width), names.get(bits))
    text = _TEXTS.get(notation)
    return text(bits, width) if text else None
