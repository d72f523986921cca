"""Every panel of the dashboard and of the report, page by page, in the order of the page.

The API, the pages, the SQL and JSON links and the report derive from `PANELS`.
Long series are thinned by their query, so that a page gets hundreds of points, not millions.
"""

from __future__ import annotations

from stethos.web.panel import Panel
from stethos.web.panels_clients import CLIENT_PANELS
from stethos.web.panels_cost import MEMORY_PANELS, TIME_PANELS
from stethos.web.panels_layers import LAYER_PANELS
from stethos.web.panels_ranks import COLLECTIVE_PANELS, GPU_PANELS, HANG_PANELS
from stethos.web.panels_run import FINDING_PANELS, LIVE_PANELS, OVERVIEW_PANELS

# Pages about one run that are made of panels, and their titles.
PAGES: dict[str, str] = {
    "overview": "Overview",
    "clients": "Clients",
    "layers": "Layers",
    "time": "Time",
    "memory": "Memory and bytes",
    "findings": "Findings",
    "live": "Live",
}

PANELS: dict[str, Panel] = {
    panel.name: panel
    for panel in (
        *OVERVIEW_PANELS,
        *CLIENT_PANELS,
        *LAYER_PANELS,
        *TIME_PANELS,
        *COLLECTIVE_PANELS,
        *GPU_PANELS,
        *MEMORY_PANELS,
        *FINDING_PANELS,
        *HANG_PANELS,
        *LIVE_PANELS,
    )
}
