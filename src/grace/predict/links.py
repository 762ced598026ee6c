"""Links: what ``--link 1gbit --latency 0.1ms`` means."""

from __future__ import annotations

import re
from dataclasses import dataclass

from grace.errors import ConfigurationError

PRESETS = ("100mbit", "1gbit", "10gbit", "25gbit")
NONE = "none"
_RATE = re.compile(r"(\d+(?:\.\d+)?)(mbit|gbit)", re.IGNORECASE)
_TIME = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)", re.IGNORECASE)
_UNITS = {"mbit": 1e6, "gbit": 1e9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
LEAST, MOST = 1e6, 400e9  # bits per second
FRAME = 1514 / 1448  # bytes on the wire for each byte of TCP's payload, at an MTU of 1,500


@dataclass(frozen=True, slots=True)
class Link:
    """The link of one worker to a switch, equally fast in both directions.

    Attributes:
        name: as the user wrote it: "none", "1gbit", "2.5gbit".
        bits_per_second: None where nothing is shaped.
        latency: seconds that it adds on the way from one worker to another, >= 0.
    """

    name: str
    bits_per_second: float | None
    latency: float = 0.0

    @property
    def shaped(self) -> bool:
        """True if it must be made; otherwise workers use the network that is there."""
        return self.bits_per_second is not None

    @property
    def seconds_per_byte(self) -> float:
        """Bytes of payload on the line, frames included; 0 where nothing is shaped."""
        return 0.0 if self.bits_per_second is None else 8 * FRAME / self.bits_per_second

    def __str__(self) -> str:
        return self.name if not self.latency else f"{self.name}+{1000 * self.latency:g}ms"


UNSHAPED = Link(NONE, None)  # one of which nothing is known, and nothing asked


def link(text: str, latency: str | float = 0.0) -> Link:
    """The link of this name.

    Args:
        text: "none", or a number with "mbit" or "gbit": 1mbit to 400gbit.
        latency: seconds, or a number with a unit: "0.1ms", "50us".

    Raises:
        ConfigurationError: neither; or a latency without a link to add it to.
    """
    name = text.strip().lower()
    seconds = seconds_of(latency) if isinstance(latency, str) else float(latency)
    if not 0 <= seconds <= 10:
        raise ConfigurationError(f"latency {latency!r} is out of range; legal: 0 to 10 seconds")
    if name == NONE:
        if seconds:
            raise ConfigurationError(f"latency {latency!r} needs a link: add --link 1gbit, or leave --latency out")
        return UNSHAPED
    match = _RATE.fullmatch(name)
    rate = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not LEAST <= rate <= MOST:
        raise ConfigurationError(
            f"unknown link {text!r}; legal: {NONE}, {', '.join(PRESETS)}, or any number with mbit or gbit (1mbit to 400gbit)"
        )
    return Link(name, rate, seconds)


def parse_links(text: str, latency: str | float = 0.0) -> list[Link]:
    """The links of names with commas between, each once.

    Raises:
        ConfigurationError: one is no link, or none is named.
    """
    links = list(dict.fromkeys(link(name, latency) for name in text.split(",") if name.strip()))
    if not links or not all(link.shaped for link in links):
        raise ConfigurationError(f"links {text!r}: name one or more speeds, with commas between, such as 1gbit,10gbit")
    return links


def seconds_of(text: str) -> float:
    """Seconds of "0.1ms", "50us", "1s"; "0" is none.

    Raises:
        ConfigurationError: it is none of these.
    """
    if text.strip() in ("", "0"):
        return 0.0
    match = _TIME.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigurationError(f"time {text!r} is unknown; legal: a number with us, ms or s, such as 0.1ms")
    return float(match[1]) * _SECONDS[match[2]]
