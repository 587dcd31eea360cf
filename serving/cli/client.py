"""A client of the control plane: its problem documents become this package's errors."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

from serving.cli import errors

TIMEOUT_S = 30.0
RETRY_FOR_S = 5.0
"""A control plane that restarts is back within this; every request may be repeated, POSTs by their key."""

WAIT_RETRY_FOR_S = 60.0
"""While somebody waits for a rollout anyway."""

PAUSE_S = 0.3
LONG_POLL_S = 2
PAGE = 200


class ControlPlane:
    """One control plane. ``transport`` stands in for the network in tests."""

    def __init__(
        self,
        url: str,
        *,
        actor: str = "",
        transport: httpx.BaseTransport | None = None,
        retry_for_s: float | None = None,
    ) -> None:
        self.url = url
        self._retry_for_s = RETRY_FOR_S if retry_for_s is None else retry_for_s
        self._http = httpx.Client(
            base_url=url,
            timeout=TIMEOUT_S,
            transport=transport,
            headers={"slipway-actor": actor} if actor.isascii() and actor else {},
        )

    def get(self, path: str, *, retry_for_s: float | None = None, **query: Any) -> Any:
        """GET and decode.

        Raises:
            CliError: of the class that fits the problem.
        """
        given = {name: value for name, value in query.items() if value is not None}
        return self._request("GET", path, retry_for_s=retry_for_s, params=given or None)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """POST once, however often the network makes us try. Raises CliError."""
        return self._request("POST", path, json=body, headers={"idempotency-key": str(uuid.uuid4())})

    def items(self, path: str, *, limit: int = 10_000, **query: Any) -> Iterator[dict[str, Any]]:
        """Items of a list, page after page, up to ``limit``."""
        page = self.get(path, limit=min(limit, PAGE), **query)
        while True:
            yield from page["items"][:limit]
            limit -= len(page["items"])
            if limit <= 0 or not page.get("next"):
                return
            page = self.get(page["next"])

    def rollout(self, identifier: str, *, known: str) -> dict[str, Any]:
        """A rollout, as soon as its state is another than ``known``, or after some seconds."""
        return self.get(f"/v1/rollouts/{identifier}", wait_s=LONG_POLL_S, state=known, retry_for_s=WAIT_RETRY_FOR_S)

    def _request(self, method: str, path: str, *, retry_for_s: float | None = None, **arguments: Any) -> Any:
        deadline = time.monotonic() + (self._retry_for_s if retry_for_s is None else retry_for_s)
        while True:
            problem: errors.CliError
            try:
                answer = self._http.request(method, path, **arguments)
            except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
                raise errors.Usage(
                    f"{self.url!r} is no URL of a control plane ({error}); write http://HOST:PORT"
                ) from error
            except httpx.TransportError as error:
                problem = errors.Unavailable(
                    f"the control plane at {self.url} does not answer ({error or type(error).__name__}); "
                    '"slipway status" tells whether the stack runs'
                )
            else:
                if answer.is_success:
                    return _decoded(answer, self.url)
                problem = from_answer(answer)
            if not isinstance(problem, errors.Unavailable) or time.monotonic() >= deadline:
                raise problem
            time.sleep(PAUSE_S)


def _decoded(answer: httpx.Response, url: str) -> Any:
    try:
        return answer.json()
    except ValueError as error:
        raise errors.CliError(f"{url} does not speak as a control plane: {answer.text[:200]!r}") from error


def from_answer(answer: httpx.Response) -> errors.CliError:
    """The error in an answer: a problem document's detail, or what else the body says."""
    message = answer.text.strip()[:2000] or answer.reason_phrase
    try:
        body = answer.json()
        message = str(body.get("detail") or body.get("message") or message)
    except (ValueError, AttributeError):
        pass
    return errors.for_status(answer.status_code)(message)
