"""A tiny client: predictions from a service, with retries that cost once."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from noiseproof.errors import DataError, NoiseproofError

_RETRIED = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses of requests that are sent again: a prediction has an idempotency key, so that it costs once."""
_LONGEST_WAIT = 60.0
"""Seconds that a service may ask for before the next try."""


class ServiceError(NoiseproofError):
    """The service refused or could not be reached; `status` is HTTP's, 0 if there was none."""

    def __init__(self, message: str, status: int = 0, problem: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.problem = problem or {}


class Client:
    """Ask a service: `Client(url, key).predict("model", inputs)["labels"]`.

    Every prediction has an idempotency key, so that a retry after a broken connection costs nothing more.

    Args:
        url: The address of the service.
        key: An API key of `noiseproof keys create`.
        retries: How often a request that got no answer is sent again.
        timeout: Seconds to wait for an answer.
        transport: What sends requests, for tests.

    Examples:
        With a service that runs (`noiseproof serve digits`):

        >>> with Client("http://localhost:8000", key) as client:  # doctest: +SKIP
        ...     answer = client.predict("digits", inputs)
        ...     print(answer["labels"], client.budget("digits"))
    """

    def __init__(
        self,
        url: str,
        key: str,
        *,
        retries: int = 4,
        timeout: float = 60.0,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._retries = retries
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=timeout, transport=transport
        )

    def predict(self, model: str, inputs: Sequence[Any], *, idempotency_key: str | None = None) -> dict[str, Any]:
        """Labels, probabilities, cost, what remains and a receipt, for records as nested lists of numbers."""
        key = idempotency_key or uuid.uuid4().hex
        return self._ask("POST", f"/v1/models/{model}/predictions", {"inputs": inputs}, {"Idempotency-Key": key})

    def models(self) -> list[dict[str, Any]]:
        """What is served."""
        with understood():
            return list(self._ask("GET", "/v1/models")["models"])

    def card(self, model: str) -> dict[str, Any]:
        """A model with its card."""
        return self._ask("GET", f"/v1/models/{model}")

    def budget(self, model: str) -> dict[str, Any]:
        """What is spent and left of a model's budget and of one's own."""
        return self._ask("GET", f"/v1/models/{model}/budget")

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> dict[str, Any]:
        try:
            request = self._http.build_request(method, path, json=body, headers=headers)
        except (ValueError, TypeError):
            raise DataError("inputs are nested lists of finite numbers, or records by the names of columns.") from None
        for attempt in range(self._retries + 1):
            wait = 0.1 * 2**attempt
            try:
                response = self._http.send(request)
            except httpx.RequestError as error:
                failure = ServiceError(f"the service cannot be reached ({type(error).__name__}); is the address right?")
            else:
                document = _document(response)
                if response.is_success and document is not None:
                    return document
                failure = _failure(response.status_code, document or {})
                if response.status_code not in _RETRIED:
                    raise failure
                after = response.headers.get("Retry-After", "")
                wait = min(float(after), _LONGEST_WAIT) if after.isdecimal() else wait
            if attempt < self._retries:
                time.sleep(wait)
        raise failure


def _document(response: httpx.Response) -> dict[str, Any] | None:
    """The JSON object of an answer; None where it is anything else, as of a proxy or of another service."""
    try:
        document = response.json()
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


@contextmanager
def understood() -> Iterator[None]:
    """Tell in one sentence that an answer has not what a service of ours puts there.

    Raises:
        ServiceError: If it has not.
    """
    try:
        yield
    except NoiseproofError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError):
        raise _failure(200, {}) from None


def _failure(status: int, problem: dict[str, Any]) -> ServiceError:
    detail = problem.get("detail") or f"the service answered {status}, and not as noiseproof does."
    return ServiceError(" ".join(str(detail).split()), status, problem)
