"""What tests of handlers share: items as TorchServe brings them, and its context."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ts.context import Context, RequestProcessor

from handlers import items

MakeItem = Callable[..., items.Item]


@pytest.fixture
def item() -> MakeItem:
    """``item(body, "text/plain", header="value")``: a REST request as TorchServe hands it over."""

    def make(body: Any, content_type: str = "text/plain", **headers: str) -> items.Item:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return items.of_request({"body": body}, {"Host": "test", **named, "body": {"content-type": content_type}})

    return make


@pytest.fixture
def context() -> Callable[..., Any]:
    """``context(folder, [headers, …])``: TorchServe's own context around a batch."""

    def make(folder: Path, headers: list[dict[str, Any]] | None = None, *, batch_size: int = 8) -> Any:
        metrics = SimpleNamespace(add_time=lambda *_, **__: None, request_ids=None)
        made: Any = Context("model", str(folder), {"model": {}}, batch_size, None, "0.12.0", True, metrics, {})
        given = headers if headers is not None else [{"Host": "test"}] * batch_size
        made.request_processor = [RequestProcessor(dict(each)) for each in given]
        made.request_ids = {index: f"request-{index}" for index in range(len(given))}
        return made

    return make


@pytest.fixture
def archive_folder(tmp_path: Path) -> Callable[..., Path]:
    """``archive_folder(handler="file:own.py", files={…}, runtime={…}, **config)``: an unpacked archive."""

    def make(
        *,
        handler: str,
        files: dict[str, bytes | str] | None = None,
        runtime: dict[str, Any] | None = None,
        **config: Any,
    ) -> Path:
        folder = tmp_path / "archive"
        (folder / "MAR-INF").mkdir(parents=True)
        (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps({"model": {"modelName": "model"}}))
        (folder / "slipway.json").write_text(json.dumps({"handler_api": 1, "handler": handler, **config}))
        if runtime is not None:
            (folder / "slipway.runtime.json").write_text(json.dumps(runtime))
        for name, content in (files or {}).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return folder

    return make
