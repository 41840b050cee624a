"""Health: can this worker pay for answers now, and is it still at work? Asked of what really happened, not of a ping."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable

from noiseproof.errors import LedgerError
from noiseproof.serve.batcher import Batcher
from noiseproof.serve.logs import log_event
from noiseproof.serve.models import LedgerConnection

_PROBE_SECONDS = 2.0
"""Seconds between two looks; a look writes to the ledger only where no spend was committed since the last one."""
_STALE_SECONDS = 8.0
"""Seconds after which a worker that has committed nothing is not ready, whatever its ledger is doing."""
_HANG_SECONDS = 30.0
"""Seconds that the event loop may be silent, or the batcher at one batch past all deadlines, before the worker ends itself."""


class Health:
    """Watches a worker from a thread of its own: the ledger by commits, the event loop and the batcher by their progress.

    A worker that hangs ends itself, and its parent starts another. (One that was stopped as a whole is replaced by the
    parent, which pings it.)
    """

    def __init__(
        self,
        connection: LedgerConnection,
        batcher: Batcher,
        *,
        look: Callable[[], None] = lambda: None,
        end: Callable[[], None] = lambda: os._exit(1),
    ) -> None:
        self._connection = connection
        self._batcher = batcher
        self._look = look
        self._end = end
        self._committed: float | None = None
        self._failed = False
        self._ticked: float | None = None
        self._stopped = threading.Event()
        self._prober = threading.Thread(target=self._probe_on, name="prober", daemon=True)
        self._watchdog = threading.Thread(target=self._watch_on, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start to watch."""
        self._prober.start()
        self._watchdog.start()

    def stop(self) -> None:
        """Stop watching; a probe that a silent ledger holds up is not waited for."""
        self._stopped.set()
        self._watchdog.join()
        self._prober.join(1.0)

    async def tick(self) -> None:
        """Show that the event loop goes on; runs as long as the loop."""
        while True:
            self._ticked = time.monotonic()
            await asyncio.sleep(1.0)

    @property
    def ready(self) -> bool:
        """Whether something was committed in the last seconds, and nothing failed since."""
        commits = [at for at in (self._committed, self._batcher.last_commit) if at is not None]
        return (
            not (self._failed or self._batcher.failed)
            and bool(commits)
            and time.monotonic() - max(commits) < _STALE_SECONDS
        )

    def probe(self) -> None:
        """Commit something to the ledger, unless a spend was committed a moment ago; then see what was changed in it."""
        last = self._batcher.last_commit
        try:
            if last is None or time.monotonic() - last > _PROBE_SECONDS or self._batcher.failed:
                self._connection.database.probe()
                self._batcher.failed = False
                self._committed = time.monotonic()
            self._look()
        except LedgerError as error:
            self._failed = True
            cause = type(error.__cause__ or error).__name__
            log_event("ledger away", at_most=0.2, error=cause, reason=str(error))
            return
        if self._failed:
            log_event("ledger back")
        self._failed = False

    def _probe_on(self) -> None:
        while True:
            try:
                self.probe()
            except Exception as error:
                self._failed = True
                log_event("probe failed", at_most=0.2, error=type(error).__name__)
            if self._stopped.wait(_PROBE_SECONDS):
                return

    def _watch_on(self) -> None:
        suspicious = 0
        while not self._stopped.wait(min(5.0, _HANG_SECONDS / 4)):
            suspicious = suspicious + 1 if self._hangs() else 0
            if suspicious >= 2:  # twice: after a pause of the whole process everything looks late once
                log_event("worker hangs; it ends itself to be replaced")
                self._end()

    def _hangs(self) -> bool:
        now = time.monotonic()
        since = self._batcher.busy_since
        silent = self._ticked is not None and now - self._ticked > _HANG_SECONDS
        return silent or (since is not None and now - since > 4 * _HANG_SECONDS)
