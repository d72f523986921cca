"""In a fresh process: pages of a run that are open, without the browser that draws them.

Each listens to the run's events and, whenever it has changed, asks for what its page shows; a page that is still asking
when the run changes again asks once more afterwards, as the real one does.
"""

from __future__ import annotations

import http.client
import sys
import threading
from urllib.parse import urlsplit

from benchmarks.child import job_of_child, leave_result
from stethos.web.panels import PANELS


class Page:
    """One page of one run; `answers` counts what it got."""

    def __init__(self, url: str, token: str, run: str, page: str) -> None:
        self._place = urlsplit(url).netloc
        self._headers = {"authorization": f"Bearer {token}", "accept-encoding": "gzip"}
        self._base = f"/api/runs/{run}"
        names = [panel.name for panel in PANELS.values() if panel.page == page and panel.chart != "findings"]
        self._asked = [f"{self._base}/findings", *(f"{self._base}/panels/{name}" for name in names)]
        self._changed = threading.Event()
        self.answers = 0
        self.is_drawn = threading.Event()
        for work in (self._listen, self._read):
            threading.Thread(target=work, daemon=True).start()

    def _listen(self) -> None:
        connection = http.client.HTTPConnection(self._place)
        connection.request("GET", f"{self._base}/events", headers={**self._headers, "accept-encoding": "identity"})
        for line in connection.getresponse():
            if line.startswith(b"data: "):
                self._changed.set()

    def _read(self) -> None:
        connection = http.client.HTTPConnection(self._place)
        while self._changed.wait():
            self._changed.clear()
            for address in self._asked:
                connection.request("GET", address, headers=self._headers)
                answer = connection.getresponse()
                answer.read()
                self.answers += answer.status == 200
            self.is_drawn.set()


def main() -> None:
    path, job = job_of_child()
    pages = [Page(job["url"], job["token"], job["run"], job["page"]) for _ in range(job["pages"])]
    for page in pages:
        page.is_drawn.wait()
    leave_result(path, {"pages": len(pages)})
    sys.stdin.readline()


if __name__ == "__main__":
    main()
