"""What the keys of `stethos top` mean: sorting, a filter that is typed, other runs, help."""

from __future__ import annotations

from dataclasses import dataclass, replace

from stethos.view.vitals import ClientOrder

ORDERS: tuple[ClientOrder, ...] = ("time", "loss", "name")
HELP = (
    ("s", "sort clients by time, loss or name; accused and failed ones stay first"),
    ("r", "the other way round"),
    ("/", "filter clients and processes by name; Enter keeps it, Esc drops it"),
    ("n p", "the next run of the directory, the one before"),
    ("space", "stop and go on"),
    ("? h", "this help"),
    ("q", "quit"),
)
_LONGEST_FILTER = 60


@dataclass(frozen=True, slots=True)
class TopKeys:
    """What has been asked for by keys so far."""

    order: ClientOrder = "time"
    is_reversed: bool = False
    wanted: str = ""
    is_typing: bool = False
    is_help: bool = False
    is_paused: bool = False
    is_over: bool = False
    move: int = 0  # to another run

    @property
    def note(self) -> str:
        """The line at the foot of the screen."""
        if self.is_typing:
            return f"filter: {self.wanted}_   Enter keeps it, Esc drops it"
        said = f"q quit  s sort: {self.order}{' reversed' if self.is_reversed else ''}  / filter  n p run  ? help"
        said += f"  filter: {self.wanted}" if self.wanted else ""
        return said + ("  PAUSED" if self.is_paused else "")


def press(keys: TopKeys, text: str) -> TopKeys:
    """After these keys, one by one; what means nothing changes nothing."""
    if text.startswith("\x1b") and len(text) > 1:  # an arrow, or another key of several bytes
        return keys
    for key in text:
        keys = _typed(keys, key) if keys.is_typing else _pressed(keys, key)
    return keys


def _typed(keys: TopKeys, key: str) -> TopKeys:
    if key in "\r\n":
        return replace(keys, is_typing=False)
    if key == "\x1b":
        return replace(keys, is_typing=False, wanted="")
    if key in "\x7f\b":
        return replace(keys, wanted=keys.wanted[:-1])
    return replace(keys, wanted=(keys.wanted + key)[:_LONGEST_FILTER]) if key.isprintable() else keys


def _pressed(keys: TopKeys, key: str) -> TopKeys:
    match key.lower():
        case "q":
            return replace(keys, is_over=True)
        case "s":
            return replace(keys, order=ORDERS[(ORDERS.index(keys.order) + 1) % len(ORDERS)])
        case "r":
            return replace(keys, is_reversed=not keys.is_reversed)
        case "/":
            return replace(keys, is_typing=True, wanted="")
        case "n" | "p":
            return replace(keys, move=keys.move + (1 if key.lower() == "n" else -1))
        case " ":
            return replace(keys, is_paused=not keys.is_paused)
        case "?" | "h":
            return replace(keys, is_help=not keys.is_help)
        case "\x1b":
            return replace(keys, is_help=False, wanted="")
    return keys
