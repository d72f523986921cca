"""A report as one HTML file: the built page, its style and the numbers, with nothing to fetch.

Only our own script and style may run, by their hashes; the numbers are a block of
data that no browser executes. So what clients are called cannot become markup, and
nothing in the file can send anything anywhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import re

from stethos.errors import UsageError
from stethos.web.page_files import PageFiles
from stethos.web.report import Report

# What would end, or confuse, the element that a script or style stands in; the same to JavaScript and CSS.
_ENDINGS = (
    (re.compile(r"</(?=script|style)", re.IGNORECASE), r"<\\/"),
    (re.compile(r"<!--"), r"<\\x21--"),
)
_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="{icon}">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript><pre>{text}</pre></noscript>
<script type="application/json" id="stethos-report">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def frame_bytes(bundle: PageFiles, text: str) -> int:
    """How large a report is without its numbers."""
    return len(page_of(Report("", "", 0, ()), bundle, text))


def page_of(report: Report, bundle: PageFiles, text: str) -> bytes:
    """The whole file; `text` is shown where scripts are not allowed. UsageError if the page has not been built."""
    if not bundle.is_built:
        raise UsageError(
            "the page has not been built into this installation",
            hint="run `make web` in a checkout, or write text with --format md",
        )
    script, style = _safe(bundle.text_of(".js")), _safe(bundle.text_of(".css"))
    icon = bundle.assets.get("/icon.svg")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(f"{report.run} · Stethos"),
        "icon": "data:image/svg+xml;base64," + base64.b64encode(icon.content).decode() if icon else "data:,",
        "style": style,
        "text": html.escape(text),
        "data": report.data,
        "script": script,
    }
    return _PAGE.format(**parts).encode("utf-8", "replace")


def _safe(code: str) -> str:
    code = code.replace("\r\n", "\n").replace("\r", "\n")  # as a browser reads it, and hashes it
    for ending, instead in _ENDINGS:
        code = ending.sub(instead, code)
    return code


def _hash(code: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
