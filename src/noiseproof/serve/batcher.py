"""Question: one request, checked and ready to be paid for; and what becomes of it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby

import torch
from pydantic_core import from_json, to_json

from noiseproof.errors import LedgerError
from noiseproof.privacy import Randomness
from noiseproof.serve.books import Books
from noiseproof.serve.documents import predictions_document
from noiseproof.serve.ledger import Caller, Paid, Refused, Retry, RetryAnswer, Spend
from noiseproof.serve.models import ServedModel
from noiseproof.serve.monitoring import tell


@dataclass(eq=False)
class Question:
    """What is asked of which model, for whom."""

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

    def recall(self, known: Mapping[str, str]) -> None:
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
        retry = None if self.retry_key is None else Retry(self.retry_key, self._question())
        return Spend(self.model.name, self.caller.client, price * rows, rows, limit, self.caller.key, retry)

    def _question(self) -> str:
        # Whether repeats are free belongs to the question: a receipt for the fresh rows alone must not buy all.
        content = f"{self.memoise} {tuple(self.features.shape)} ".encode() + self.features.numpy().tobytes()
        return _digest(content, self.secret)


@dataclass(frozen=True)
class Reply:
    """The document to send; `answers` were paid for by the receipt of that id."""

    document: bytes
    answers: int = 0
    receipt: str | None = None
    replayed: bool = False


Outcome = Reply | Refused


def _digest(content: bytes, secret: bytes) -> str:
    return hashlib.blake2b(content, key=secret, digest_size=24).hexdigest()


# Batcher: pays for and answers the requests that wait, many at a time, in one thread of a worker.
#
# Requests that come while a transaction is on its way to the disk share the next one, and the next forward pass: what a
# commit costs is divided by how many wait for it.


_AT_ONCE = 64
"""Questions that one transaction pays for at most, so that nobody waits long for others."""

_LONGEST = 0.01
"""Seconds that a batch is held back at most for requests that are about to join it."""

_Waiting = tuple[Question, asyncio.AbstractEventLoop, "asyncio.Future[Outcome]"]


class Batcher:
    """One thread that takes the questions that wait, spends for all of them in one transaction, then answers.

    Formal guarantee
    ----------------
    No answer of a model with a price is computed before its spend is committed, and none is released that was not
    kept first where a retry could ask for it again. What follows for privacy is said at `Ledger`, `Answers` and
    `Amount`.
    """

    def __init__(self, books: Books, rng: Randomness, waiting: int) -> None:
        self._books = books
        self._rng = rng
        self._queue: queue.Queue[_Waiting | None] = queue.Queue(waiting)
        self._coming = 0  # written by the event loop's thread only
        self._patience = 0.0
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Answer what waits, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    async def ask(self, question: Question) -> Outcome:
        """The outcome of a question; raises `queue.Full` if too many wait, and `LedgerError` if the ledger is away."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        self._queue.put_nowait((question, loop, future))
        return await future

    def _run(self) -> None:
        ended = False
        while not ended:
            waiting = self._collect()
            ended = None in waiting
            asked = [one for one in waiting if one is not None]
            began = time.monotonic()
            outcomes = self.answer([question for question, _, _ in asked])
            self._patience = (time.monotonic() - began) / 2 if len(asked) > 1 else 0.0
            for question, loop, future in asked:
                loop.call_soon_threadsafe(_settle, future, outcomes[question])

    def _collect(self) -> list[_Waiting | None]:
        """The next questions: those that wait, and those that are about to.

        A commit costs the same for one as for many. So while requests are being read, and, if several came together last
        time, for half as long as that batch took, others may join.
        """
        waiting = [self._queue.get()]
        now = time.monotonic()
        short, long = now + min(self._patience, _LONGEST), now + _LONGEST
        while len(waiting) < _AT_ONCE and waiting[-1] is not None:
            now = time.monotonic()
            if now > long or (now > short and self._coming == 0 and self._queue.empty()):
                break
            with contextlib.suppress(queue.Empty):
                waiting.append(self._queue.get(timeout=0.0005))
        return waiting

    @contextmanager
    def coming(self) -> Iterator[None]:
        """While a request is being read that will soon be asked."""
        self._coming += 1
        try:
            yield
        finally:
            self._coming -= 1

    def answer(self, questions: Sequence[Question]) -> dict[Question, Outcome | Exception]:
        """Pay for questions and answer them; one that fails does not take the others with it."""
        outcomes: dict[Question, Outcome | Exception] = {}
        paid: dict[Question, Paid | None] = {question: None for question in questions if question.model.price is None}
        priced = [question for question in questions if question.model.price is not None]
        try:
            self._recall(priced)
            for question, outcome in self._pay(priced).items():
                if isinstance(outcome, Refused):
                    outcomes[question] = outcome
                elif outcome is not None and outcome.answer is not None:
                    entry = outcome.receipt.entry
                    outcomes[question] = Reply(outcome.answer.encode(), entry.answers, entry.receipt, replayed=True)
                else:
                    paid[question] = outcome
        except Exception as error:
            outcomes.update(dict.fromkeys(priced, _told(error)))
        by_name = sorted(paid, key=lambda question: question.model.name)
        for _, group in groupby(by_name, key=lambda question: question.model.name):
            together = list(group)
            try:
                replies = self._answer_paid(together[0].model, {question: paid[question] for question in together})
                outcomes.update(replies)
            except Exception as error:
                outcomes.update(dict.fromkeys(together, _told(error)))
        return outcomes

    def _recall(self, questions: Sequence[Question]) -> None:
        """Find answers that were given before, where they are free."""
        for question in questions:
            if question.memoise:
                answers = self._books.answers
                question.recall(answers.known(question.model.name, question.caller.client, question.digests))

    def _pay(self, questions: Sequence[Question]) -> dict[Question, Paid | Refused | None]:
        """Pay for the fresh rows of all questions in one transaction; None where there is nothing to pay for."""
        outcomes: dict[Question, Paid | Refused | None] = dict.fromkeys(questions)
        costly = [question for question in questions if question.fresh]
        if costly:
            spends = [question.spend for question in costly]
            outcomes.update(zip(costly, self._books.ledger.spend_together(spends), strict=True))
        return outcomes

    def _answer_paid(self, model: ServedModel, paid: dict[Question, Paid | None]) -> dict[Question, Outcome]:
        """Answer what is paid for, with one forward pass for all, and keep what retries and repeats may ask for."""
        fresh = [question.features[question.fresh] for question in paid]
        counts = [len(rows) for rows in fresh]
        answers: list[list[float]] = []
        if sum(counts):
            answers = model.answer(torch.cat(fresh), self._rng).tolist()
        replies: dict[Question, Outcome] = {}
        start = 0
        for question, count in zip(paid, counts, strict=True):
            probabilities = answers[start : start + count]
            start += count
            if question.memoise:
                probabilities = self._with_known(question, probabilities)
            outcome = paid[question]
            document = predictions_document(model, probabilities, outcome, count)
            if outcome is None:
                replies[question] = Reply(document)
                continue
            if question.retry_key is not None:
                document = self._keep(question, document)
            replies[question] = Reply(document, count, outcome.receipt.id, replayed=outcome.repeated)
        return replies

    def _with_known(self, question: Question, answers: list[list[float]]) -> list[list[float]]:
        """All rows of a question from known and fresh answers; of two that were made at once, the first that was kept."""
        new = {
            question.digests[row]: to_json(answer).decode() for row, answer in zip(question.fresh, answers, strict=True)
        }
        if new:
            kept = self._books.answers.remember(question.model.name, question.caller.client, new)
            question.known.update(kept)
        return [from_json(question.known[digest]) for digest in question.digests]

    def _keep(self, question: Question, document: bytes) -> bytes:
        assert question.retry_key is not None
        answer = RetryAnswer(question.model.name, question.caller.client, question.retry_key, document.decode())
        return self._books.answers.keep([answer])[0].encode()


def _told(error: Exception) -> Exception:
    """The error for whoever waits. Only of the ledger's do we say what it is; others are noted here by place and kind."""
    if not isinstance(error, LedgerError):
        tell("batch failed", error)
    return error


def _settle(future: asyncio.Future[Outcome], outcome: Outcome | Exception) -> None:
    if future.cancelled():  # whoever asked has gone
        return
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
