"""How tests connect to a real SGLang: by a new connection for each request.

SGLang closes a connection that was idle for 5 s, and httpx keeps one just as long. A request that is sent while the
server is about to close fails with `ReadError`, as if the server had ended.
"""

from typing import Final

import httpx

NOT_KEPT: Final = httpx.Limits(max_keepalive_connections=0)
