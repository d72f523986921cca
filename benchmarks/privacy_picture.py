"""Draws what each level of privacy costs and gives as two curves, as SVG: for docs/privacy.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.faults.__main__ import wilson

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 620, 50, 300
_NAMED, _LEARNT = "#1f5fa8", "#b3421a"


def drawn(told: Mapping[str, Mapping[str, Any]]) -> str:
    """One point per level: faulty clients named exactly, with its interval, and what the attacker gains on a guess."""
    places = {level: _LEFT + 50 + 115 * place for place, level in enumerate(told)}
    named, learnt, bars = [], [], []
    for level, one in told.items():
        good, total = one["one"]
        low, high = wilson(good, total)
        named.append((places[level], _y(good / max(total, 1))))
        bars.append(f'<path d="M{places[level]} {_y(low):.1f}V{_y(high):.1f}" stroke="{_NAMED}" stroke-width="2"/>')
        learnt.append((places[level], _y(max(one["gained"], 0.0) / one["guess_far"])))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="13"><title>What each privacy level costs in diagnosis and gives in privacy</title>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        *(_grid_line(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)),
        *(f'<text x="{x}" y="{_BOTTOM + 22}" text-anchor="middle">{level}</text>' for level, x in places.items()),
        *bars,
        *_curve(named, _NAMED, "none"),
        *_curve(learnt, _LEARNT, "6 4"),
        _legend(20, _NAMED, "none", "one faulty client, exactly named (95 % interval)"),
        _legend(38, _LEARNT, "6 4", "of the labels' shares: learnt beyond a guess"),
        f'<text x="{(_LEFT + _RIGHT) / 2}" y="{_HEIGHT - 12}" text-anchor="middle">level of the site\'s policy</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _y(share: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * share


def _grid_line(share: float) -> str:
    y = _y(share)
    return (
        f'<path d="M{_LEFT} {y:.1f}H{_RIGHT}" stroke="#ddd"/>'
        f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>'
    )


def _curve(points: Sequence[tuple[float, float]], colour: str, dashes: str) -> list[str]:
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>' for x, y in points]
    return [f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>', *dots]


def _legend(y: int, colour: str, dashes: str, text: str) -> str:
    return (
        f'<path d="M{_LEFT} {y - 4}h28" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
        f'<text x="{_LEFT + 36}" y="{y}">{text}</text>'
    )
