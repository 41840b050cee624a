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

import torch
from pydantic_core import from_json, to_json

from noiseproof.errors import LedgerError
from noiseproof.privacy import Randomness
from noiseproof.serve import documents
from noiseproof.serve.ledger import Caller, Paid, Receipt, Refused, Retry, Spend
from noiseproof.serve.models import LedgerConnection, ServedModel
from noiseproof.serve.monitoring import log_error
from noiseproof.tensors import all_finite

_MOST_REQUESTS = 64
"""Requests that one transaction pays for at most, so that nobody waits long for others."""

_MOST_SECONDS = 0.01
"""Seconds that a batch is held back at most for requests that are about to join it."""


@dataclass(eq=False)
class PredictionRequest:
    """One request, checked and ready to be paid for."""

    model: ServedModel
    caller: Caller
    features: torch.Tensor
    secret: bytes
    """What digests of inputs are keyed with; it comes from the API key, so that the database alone tells no inputs."""
    limit: int | None = None
    """How many answers the client may have of this model in all."""
    retry_key: str | None = None
    memoise: bool = False
    known: dict[str, str] = field(default_factory=dict)
    """Answers that this client had to the same inputs before, by digest."""

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
        return Spend(self.model.account, self.caller.client, price * rows, rows, limit, self.caller.key, retry)


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
_Waiting = tuple[PredictionRequest, asyncio.AbstractEventLoop, "asyncio.Future[Outcome]"]


class Batcher:
    """One thread that takes the requests that wait, spends for all of them in one transaction, then answers.

    Formal guarantee
    ----------------
    No answer of a model with a price is computed before its spend is committed, and none is released that was not
    kept first where a retry could ask for it again. What follows for privacy is said at `Ledger`, `Answers` and
    `Amount`.
    """

    def __init__(self, connection: LedgerConnection, rng: Randomness, waiting: int) -> None:
        self._connection = connection
        self._rng = rng
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(waiting)
        self._expected = 0  # written by the event loop's thread only
        self._hold_seconds = 0.0
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what waits, then end the thread."""
        self._queue.put(None)
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
        future: asyncio.Future[Outcome] = loop.create_future()
        self._queue.put_nowait((request, loop, future))
        return await future

    def _run(self) -> None:
        ended = False
        while not ended:
            waiting = self._collect()
            ended = None in waiting
            taken = [one for one in waiting if one is not None]
            began = time.monotonic()
            outcomes = self.answer([request for request, _, _ in taken])
            self._hold_seconds = (time.monotonic() - began) / 2 if len(taken) > 1 else 0.0
            for request, loop, future in taken:
                loop.call_soon_threadsafe(_resolve, future, outcomes[request])

    def _collect(self) -> list[_Waiting | None]:
        """The next requests: those that wait, and those that are about to.

        A commit costs the same for one as for many. So while requests are being read, and, if several came together last
        time, for half as long as that batch took, others may join.
        """
        waiting = [self._queue.get()]
        now = time.monotonic()
        short, long = now + min(self._hold_seconds, _MOST_SECONDS), now + _MOST_SECONDS
        while len(waiting) < _MOST_REQUESTS and waiting[-1] is not None:
            now = time.monotonic()
            if now > long or (now > short and self._expected == 0 and self._queue.empty()):
                break
            with contextlib.suppress(queue.Empty):
                waiting.append(self._queue.get(timeout=0.0005))
        return waiting

    def answer(self, requests: Sequence[PredictionRequest]) -> dict[PredictionRequest, Outcome | Exception]:
        """Pay for requests and answer them; one that fails does not take the others with it."""
        outcomes: dict[PredictionRequest, Outcome | Exception] = {}
        paid: dict[PredictionRequest, Paid | None] = {one: None for one in requests if one.model.price is None}
        priced = [request for request in requests if request.model.price is not None]
        try:
            for request, outcome in self._pay(priced).items():
                if isinstance(outcome, Refused):
                    outcomes[request] = outcome
                elif outcome is not None and outcome.answer is not None:
                    entry = outcome.receipt.entry
                    outcomes[request] = Reply(outcome.answer.encode(), entry.answers, entry.receipt, replayed=True)
                else:
                    paid[request] = outcome
        except Exception as error:
            outcomes.update(_failed(dict.fromkeys(priced), error))
        by_name = sorted(paid, key=_model_name)
        for _, group in groupby(by_name, key=_model_name):
            outcomes.update(self._answer_paid({request: paid[request] for request in group}))
        return outcomes

    def _pay(self, requests: Sequence[PredictionRequest]) -> dict[PredictionRequest, Paid | Refused | None]:
        """Pay for the fresh rows of all requests in one transaction; None where there is nothing to pay for."""
        for request in requests:
            if request.memoise:
                answers = self._connection.answers
                request.use_known(answers.known(request.model.account, request.caller.client, request.digests))
        outcomes: dict[PredictionRequest, Paid | Refused | None] = dict.fromkeys(requests)
        costly = [request for request in requests if request.fresh]
        if costly:
            ledger = self._connection.ledger  # which tells the models their accounts when it is opened
            outcomes.update(zip(costly, ledger.spend_together([one.spend for one in costly]), strict=True))
        return outcomes

    def _answer_paid(
        self, paid: Mapping[PredictionRequest, Paid | None]
    ) -> dict[PredictionRequest, Outcome | Exception]:
        """Answer requests to one model that are paid for, with one forward pass, and keep what may be asked for again.

        If that pass fails, every request has one of its own, so that no client's inputs cost others their answers.
        """
        replies: dict[PredictionRequest, Outcome | Exception] = {}
        try:
            scores = _compute(list(paid), self._rng)
        except Exception as error:
            if len(paid) > 1:
                for request, payment in paid.items():
                    replies.update(self._answer_paid({request: payment}))
                return replies
            return _failed(paid, error)
        for request, payment in paid.items():
            try:
                replies[request] = self._reply(request, payment, scores[request])
            except Exception as error:
                replies.update(_failed({request: payment}, error))
        return replies

    def _reply(self, request: PredictionRequest, payment: Paid | None, scores: torch.Tensor) -> Reply:
        if not all_finite(scores):
            raise ArithmeticError("an answer is not finite")
        probabilities = scores.tolist()
        if request.memoise:
            probabilities = self._with_known(request, probabilities)
        document = documents.predictions(request.model, probabilities, payment, len(scores))
        if payment is None:
            return Reply(document)
        if request.retry_key is not None:
            whose = request.model.account, request.caller.client, request.retry_key
            document = self._connection.answers.keep(*whose, document.decode()).encode()
        return Reply(document, len(scores), payment.receipt.id, replayed=payment.repeated)

    def _with_known(self, request: PredictionRequest, answers: list[list[float]]) -> list[list[float]]:
        """All rows of a request from known and fresh answers; of two that were made at once, the first that was kept."""
        new = {
            request.digests[row]: to_json(answer).decode() for row, answer in zip(request.fresh, answers, strict=True)
        }
        if new:
            kept = self._connection.answers.remember(request.model.account, request.caller.client, new)
            request.known.update(kept)
        return [from_json(request.known[digest]) for digest in request.digests]


def _model_name(request: PredictionRequest) -> str:
    return request.model.name


def _digest(content: bytes, secret: bytes) -> str:
    return hashlib.blake2b(content, key=secret, digest_size=24).hexdigest()


def _compute(requests: Sequence[PredictionRequest], rng: Randomness) -> dict[PredictionRequest, torch.Tensor]:
    """The scores of all fresh rows, by request."""
    counts = [len(request.fresh) for request in requests]
    fresh = torch.cat([request.features[request.fresh] for request in requests])
    scores = requests[0].model.answer(fresh, rng) if len(fresh) else torch.empty(0)
    return dict(zip(requests, scores.split(counts), strict=True))


def _failed(
    paid: Mapping[PredictionRequest, Paid | None], error: Exception
) -> dict[PredictionRequest, Outcome | Exception]:
    """Failures of all who wait. What the ledger says they are told; anything else is logged, by place and kind."""
    if isinstance(error, LedgerError):
        return dict.fromkeys(paid, error)
    log_error("batch failed", error)
    return {request: FailedAnswerError(None if one is None else one.receipt) for request, one in paid.items()}


def _resolve(future: asyncio.Future[Outcome], outcome: Outcome | Exception) -> None:
    if future.cancelled():  # whoever asked has gone
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
