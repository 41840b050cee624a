"""Worker: one process of a service, as `server` starts it; it serves a socket that it was given, and ends with its parent.

Usage: python -m noiseproof.serve.worker SOCKET PARENT, two file descriptors; settings come by the environment.
"""

from __future__ import annotations

import os
import socket
import sys
import threading

import uvicorn

from noiseproof.serve.app import from_environment

CERTIFICATE, PRIVATE_KEY = "NOISEPROOF_SERVE_CERTIFICATE", "NOISEPROOF_SERVE_PRIVATE_KEY"


def main(listening: int, parent: int) -> None:
    """Serve until told to stop: then no new requests, and those that wait are answered."""
    server = uvicorn.Server(
        uvicorn.Config(
            from_environment,
            factory=True,
            log_config=None,
            access_log=False,
            server_header=False,
            h11_max_incomplete_event_size=32 << 10,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=30,
            ssl_certfile=os.environ.get(CERTIFICATE),
            ssl_keyfile=os.environ.get(PRIVATE_KEY),
        )
    )

    def orphaned() -> None:
        os.read(parent, 1)  # returns when the last holder of the other end is gone
        server.should_exit = True

    threading.Thread(target=orphaned, daemon=True).start()
    server.run([socket.socket(fileno=listening)])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
