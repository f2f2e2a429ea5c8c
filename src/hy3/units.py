"""Units as they are printed: decimal GB for files and rates."""

from __future__ import annotations


def format_bytes(count: int) -> str:
    """Bytes in decimal units with three significant digits, e.g. ``181 GB`` or ``23.8 MB``."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    for unit in ("kB", "MB", "GB", "TB", "PB"):  # noqa: B007 - the last unit tried is printed
        value /= 1000
        if value < 999.5:
            break
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def format_seconds(seconds: float) -> str:
    """A duration as people say it: ``850 ms``, ``12.3 s``, ``4 min 05 s``, ``2 h 03 min``."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
