"""Batcher: pays for and answers the requests that wait, many at a time, in one thread of a worker.

Requests that come while a transaction is on its way to the disk share the next one, and the next forward pass: what a
commit costs is divided by how many wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from pydantic_core import from_json, to_json

from noiseproof.errors import LedgerError
from noiseproof.privacy import Randomness
from noiseproof.serve import documents
from noiseproof.serve.ledger import (
    Answers,
    Caller,
    LedgerAwayError,
    LedgerUnsureError,
    Paid,
    Receipt,
    Refused,
    Retry,
    Spend,
)
from noiseproof.serve.ledger.deadlines import Patience
from noiseproof.serve.logs import log_error
from noiseproof.serve.models import LedgerConnection, ServedModel
from noiseproof.serve.monitoring import Metrics

_MOST_REQUESTS = 64
"""Requests that one transaction pays for at most, so that nobody waits long for others."""

_MOST_SECONDS = 0.01
"""Seconds that a batch is held back at most for requests that are about to join it."""

_RETRY_SECONDS = 0.1
"""Seconds until a ledger that is away is tried again."""

_MODEL_NAME = attrgetter("model.name")


@dataclass(frozen=True)
class Reply:
    """The document to send; `answers` were paid for by the receipt of that id."""

    document: bytes
    answers: int = 0
    receipt: str | None = None
    replayed: bool = False


class FailedAnswerError(Exception):
    """A request could not be answered; its receipt, if it was paid for."""

    def __init__(self, receipt: Receipt | None) -> None:
        super().__init__("a request could not be answered")
        self.receipt = receipt


Outcome = Reply | Refused


@dataclass(eq=False)
class PredictionRequest:
    """One request, checked and ready to be paid for."""

    model: ServedModel
    caller: Caller
    features: torch.Tensor
    secret: bytes
    """What digests of inputs are keyed with: the client's own, the same for all of its API keys."""
    limit: int | None = None
    """How many answers the client may have of this model in all."""
    retry_key: str | None = None
    memoise: bool = False
    known: dict[str, str] = field(default_factory=dict)
    """Answers that this client had to the same inputs before, by digest."""
    tried: Receipt | None = None
    """What it was paid by, if the commit of an earlier try arrived."""
    paid: Paid | None = None
    answer: bytes | torch.Tensor | Exception | None = None
    """What was worked out, of which nothing leaves before it is paid for: the document; scores of fresh rows alone, where
    others are known; what went wrong."""
    outcome: Outcome | Exception | None = None
    """What came of it."""
    told: asyncio.Future[Outcome | Exception] | None = None
    """Where whoever sent it waits for the outcome."""

    def __post_init__(self) -> None:
        rows = self.features.flatten(1).numpy()
        self.digests = [_digest(row.tobytes(), self.secret) for row in rows] if self.memoise else []
        self.fresh = list(range(len(rows)))
        """The rows that must be paid for and answered anew."""

    def use_known(self, known: Mapping[str, str]) -> None:
        """Take over answers given before; a row that comes twice is answered once."""
        self.known = dict(known)
        first: dict[str, int] = {}
        for row, digest in enumerate(self.digests):
            if digest not in self.known:
                first.setdefault(digest, row)
        self.fresh = list(first.values())

    @property
    def whose(self) -> tuple[str, str]:
        """The account and the client that answers are kept for."""
        return self.model.account, self.caller.client

    @property
    def spend(self) -> Spend:
        """What it costs."""
        assert self.model.price is not None
        price, rows = self.model.price, len(self.fresh)
        limit = None if self.limit is None else price * self.limit
        retry = None
        if self.retry_key is not None:
            # Whether repeats are free belongs to the request: a receipt for the fresh rows alone must not buy all. So
            # does the name asked under: the answer has it.
            about = f"{self.model.name} {self.memoise} {tuple(self.features.shape)} "
            content = about.encode() + self.features.numpy().tobytes()
            retry = Retry(self.retry_key, _digest(content, self.secret))
        return Spend(*self.whose, price * rows, rows, limit, self.caller.id, retry, self.tried)


class Batcher:
    """One thread that takes the requests that wait, spends for all of them in one transaction, then answers.

    Formal guarantee
    ----------------
    No answer to a client of a model with a price is released before its spend is committed and on disk, and none that was not
    kept first where a retry could ask for it again. Answers are worked out while their spends are brought to disk; if that
    fails they are thrown away, unseen, and others are drawn should the spends be made after all. What follows for privacy
    is said at `Ledger`, `Answers` and `Amount`.
    """

    def __init__(
        self,
        connection: LedgerConnection,
        rng: Randomness,
        waiting: int,
        metrics: Metrics | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._connection = connection
        self._rng = rng
        self._most_waiting = waiting
        self._metrics = metrics
        self._patience = patience or Patience(0.0)
        self._waiting: list[PredictionRequest] = []
        self._changed = threading.Condition()
        self._expected = 0  # written by the event loop's thread only
        self._ended = False
        self._hold_seconds, self._last = 0.0, 0
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self.last_commit: float | None = None
        """When a spend was last committed, by the monotonic clock."""
        self.busy_since: float | None = None
        """Since when the thread has been at one batch, by the monotonic clock; None while it waits for one."""
        self.failed = False
        """Whether a spend could not be committed, and none was since."""

    @property
    def _answers(self) -> Answers:
        return Answers(self._connection.database)

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._waiting)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what waits, then end the thread."""
        with self._changed:
            self._ended = True
            self._changed.notify()
        self._thread.join()

    @contextlib.contextmanager
    def expecting(self) -> Iterator[None]:
        """While a request is being read that will soon be submitted."""
        self._expected += 1
        try:
            yield
        finally:
            self._expected -= 1

    async def submit(self, request: PredictionRequest) -> Outcome:
        """Wait for a request's outcome.

        Raises:
            queue.Full: If too many wait.
            LedgerError: If the ledger cannot be used.
        """
        loop = asyncio.get_running_loop()
        request.told = loop.create_future()
        with self._changed:
            if len(self._waiting) >= self._most_waiting:
                raise queue.Full
            self._waiting.append(request)
            # The thread is woken for the first, and then when it has nothing more to wait for: to be woken costs it as
            # much as a small answer.
            there = len(self._waiting)
            if there == 1 or there >= _MOST_REQUESTS or (self._expected == 0 and there >= self._last):
                self._changed.notify()
        outcome = await request.told
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def _run(self) -> None:
        while batch := self._collect():
            # Whoever has gone by now is not charged.
            taken = [one for one in batch if one.told is None or not one.told.cancelled()]
            self.busy_since = began = time.monotonic()
            unpaid = self.answer(taken)
            self.busy_since = None
            self._tell(taken)
            self._hold_seconds, self._last = time.monotonic() - began, len(taken) + len(self._waiting)
            if unpaid:
                with self._changed:
                    self._waiting[:0] = unpaid
                    self._changed.wait_for(lambda: self._ended, _RETRY_SECONDS)

    def _collect(self) -> list[PredictionRequest]:
        """The next requests: those that wait, and those that are about to; none when it is time to end.

        A commit costs nearly the same for one as for many. So while requests are being read, and until as many are there
        as were in the last batch or came while it was under way, though at most for as long as it took, others may join.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._ended)
            now = time.monotonic()
            short, long = now + min(self._hold_seconds, _MOST_SECONDS), now + _MOST_SECONDS
            while len(self._waiting) < _MOST_REQUESTS and not self._ended and now < long:
                if self._expected == 0 and (now >= short or len(self._waiting) >= self._last):
                    break
                self._changed.wait((short if now < short else long) - now)
                now = time.monotonic()
            batch, self._waiting = self._waiting[:_MOST_REQUESTS], self._waiting[_MOST_REQUESTS:]
            return batch

    def _tell(self, requests: Sequence[PredictionRequest]) -> None:
        """Wake all who wait for these requests, by one call for all of them."""
        told = [(one.told, one.outcome) for one in requests if one.told is not None and one.outcome is not None]
        if told:
            with contextlib.suppress(RuntimeError):  # the loop is gone, and with it whoever waited
                told[0][0].get_loop().call_soon_threadsafe(_wake, told)

    def answer(self, requests: Sequence[PredictionRequest]) -> list[PredictionRequest]:
        """Pay for requests and answer them; one that fails does not take the others with it.

        Returns:
            Those to be tried again: the ledger is away, nothing was written, and it may be back in a moment.
        """
        priced = [request for request in requests if request.model.price is not None]
        unpaid: list[PredictionRequest] = []
        began = time.monotonic()
        try:
            self._pay(priced)
        except Exception as error:
            self.failed = True
            if (
                isinstance(error, (LedgerAwayError, LedgerUnsureError))
                and self._patience.lasts(began)
                and not self._ended
            ):
                unpaid = priced
            else:
                _fail(priced, error)
        answered = [one for one in requests if one.outcome is None and one not in unpaid]
        self._work_out([one for one in answered if one.answer is None])
        for request in answered:
            try:
                request.outcome = self._reply(request)
            except Exception as error:
                _fail([request], error)
        return unpaid

    def _pay(self, requests: Sequence[PredictionRequest]) -> None:
        """Pay for the fresh rows of all requests in one transaction."""
        for request in requests:
            if request.memoise:
                request.use_known(self._answers.known(*request.whose, request.digests))
        costly = [request for request in requests if request.fresh]
        if not costly:
            return
        ledger = self._connection.ledger  # which tells the models their accounts when it is opened
        began = time.monotonic()
        try:
            outcomes = ledger.spend_together(
                [one.spend for one in costly], lambda outcomes: self._prepare(costly, outcomes)
            )
        except Exception as error:
            for request in costly:
                request.paid = request.answer = None
            if isinstance(error, LedgerUnsureError):
                for request, outcome in zip(costly, error.outcomes, strict=True):
                    if isinstance(outcome, Paid) and not outcome.repeated:
                        request.tried = outcome.receipt
            raise
        self.last_commit, self.failed = time.monotonic(), False
        self._patience.renew()
        if self._metrics is not None:
            self._metrics.observe_commit(self.last_commit - began, len(costly), self.waiting)
        for request, outcome in zip(costly, outcomes, strict=True):
            if isinstance(outcome, Refused):
                request.outcome = outcome
            elif outcome.answer is not None:
                entry = outcome.receipt.entry
                request.outcome = Reply(outcome.answer.encode(), entry.answers, entry.receipt, replayed=True)
            else:
                request.paid = outcome

    def _prepare(self, requests: Sequence[PredictionRequest], outcomes: Sequence[Paid | Refused]) -> None:
        """Work out what is being paid for and was not answered before."""
        for request, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Paid) and outcome.answer is None:
                request.paid = outcome
        self._work_out([request for request in requests if request.paid is not None])

    def _work_out(self, requests: Sequence[PredictionRequest]) -> None:
        """Answers, with one forward pass for all requests to a model; raises nothing."""
        for _, group in groupby(sorted(requests, key=_MODEL_NAME), key=_MODEL_NAME):
            self._score(list(group))

    def _score(self, requests: Sequence[PredictionRequest]) -> None:
        """Answers of requests to one model.

        If the pass that all share fails, every request has one of its own, so that no client's inputs cost others their
        answers.
        """
        try:
            scores = _compute(requests, self._rng)
        except Exception as error:
            if len(requests) == 1:
                requests[0].answer = error
            else:
                for request in requests:
                    self._score([request])
            return
        for request, own in zip(requests, scores, strict=True):
            try:
                if not own.isfinite().all():
                    raise ArithmeticError("an answer is not finite")
                request.answer = own if request.memoise else _document(request, own.numpy())
            except Exception as error:
                request.answer = error

    def _reply(self, request: PredictionRequest) -> Reply:
        answer, paid = request.answer, request.paid
        if isinstance(answer, torch.Tensor):
            answer = _document(request, np.array(self._with_known(request, answer.tolist())))
        if not isinstance(answer, bytes):
            raise answer or RuntimeError("a request was not worked out")
        if paid is None:
            return Reply(answer)
        if request.retry_key is not None:
            answer = self._answers.keep(*request.whose, request.retry_key, answer.decode()).encode()
        return Reply(answer, len(request.fresh), paid.receipt.id, replayed=paid.repeated)

    def _with_known(self, request: PredictionRequest, answers: list[list[float]]) -> list[list[float]]:
        """All rows of a request from known and fresh answers; of two that were made at once, the first that was kept."""
        new = {
            request.digests[row]: to_json(answer).decode() for row, answer in zip(request.fresh, answers, strict=True)
        }
        if new:
            request.known.update(self._answers.remember(*request.whose, new))
        return [from_json(request.known[digest]) for digest in request.digests]


def _digest(content: bytes, secret: bytes) -> str:
    return hashlib.blake2b(content, key=secret, digest_size=24).hexdigest()


def _compute(requests: Sequence[PredictionRequest], rng: Randomness) -> Sequence[torch.Tensor]:
    """The scores of each request's fresh rows."""
    fresh = torch.cat([one.features[one.fresh] if one.memoise else one.features for one in requests])
    scores = requests[0].model.answer(fresh, rng).contiguous() if len(fresh) else torch.empty(0)
    return scores.split([len(request.fresh) for request in requests])


def _document(request: PredictionRequest, probabilities: npt.NDArray[Any]) -> bytes:
    return documents.predictions(request.model, probabilities, request.paid, len(request.fresh))


def _fail(requests: Sequence[PredictionRequest], error: Exception) -> None:
    """Tell all who wait. What the ledger says they are told; anything else is logged, by place and kind."""
    ledger = isinstance(error, LedgerError)
    if not ledger:
        log_error("batch failed", error)
    for request in requests:
        if request.outcome is None:
            receipt = None if request.paid is None else request.paid.receipt
            request.outcome = error if ledger else FailedAnswerError(receipt)


def _wake(told: Sequence[tuple[asyncio.Future[Outcome | Exception], Outcome | Exception]]) -> None:
    for future, outcome in told:
        if not future.done():  # who waited may have gone meanwhile
            future.set_result(outcome)
