"""Gives every client of NVFlare's simulator a site of its own, as the start script of a real client would.

`NVFLARE_SITES` has the directory of each client's site as a JSON object.
"""

import json
import os
import sys

_words = sys.orig_argv
_sites = json.loads(os.environ.get("NVFLARE_SITES", "{}"))
if "--client" in _words and _words[_words.index("--client") + 1] in _sites:
    os.environ["STETHOS_SITE"] = _sites[_words[_words.index("--client") + 1]]
