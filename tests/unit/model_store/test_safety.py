"""What the scan of a checkpoint lets through, and what it names."""

from __future__ import annotations

import collections
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from model_store import errors, safety


class Calls:
    """Pickles as a call of ``function(*arguments)``."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def names(path: Path) -> list[str]:
    return [finding.name for finding in safety.scan(path)]


def checkpoint(path: Path, body: bytes, *, others: tuple[str, ...] = ()) -> Path:
    """A file as ``torch.save`` lays it out."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/data.pkl", body)
        for other in others:
            archive.writestr(other, b"")
    return path


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_call_is_found_in_every_protocol_and_named(tmp_path: Path, protocol: int) -> None:
    body = pickle.dumps({"weights": Calls(os.system, "true")}, protocol=protocol)
    assert names(checkpoint(tmp_path / "a.pth", body)) == [f"{os.system.__module__}.system"]


def test_plain_containers_are_let_through(tmp_path: Path) -> None:
    body = pickle.dumps(collections.OrderedDict(a=[1, 2.5, "x", b"y", None, {1}, (1,)]), protocol=4)
    assert names(checkpoint(tmp_path / "a.pt", body)) == []


def test_a_call_before_the_pickle_breaks_is_found_all_the_same(tmp_path: Path) -> None:
    body = pickle.dumps(Calls(os.system, "true"), protocol=2)[:-1] + b"\xff\xff\xff"
    assert names(checkpoint(tmp_path / "a.pt", body)) == [f"{os.system.__module__}.system"]


def test_a_name_that_is_put_together_out_of_memo_entries_is_resolved(tmp_path: Path) -> None:
    body = b"\x80\x04\x8c\x02os\x94\x8c\x06system\x94\x30\x30h\x00h\x01\x93."
    assert names(checkpoint(tmp_path / "a.pt", body)) == ["os.system"]


def test_a_name_that_only_the_unpickler_can_know_counts_as_unsafe(tmp_path: Path) -> None:
    body = b"\x80\x04]\x94\x8c\x06system\x93."
    assert names(checkpoint(tmp_path / "a.pt", body)) == [safety.UNKNOWN]


def test_every_pickle_of_an_old_checkpoint_is_read(tmp_path: Path) -> None:
    stream = io.BytesIO()
    for part in (0x1950A86A20F9469CFC6C, 1001, {}, Calls(os.system, "true")):
        pickle.dump(part, stream, protocol=2)
    path = tmp_path / "old.pth"
    path.write_bytes(stream.getvalue() + b"raw tensor bytes")
    assert names(path) == [f"{os.system.__module__}.system"]


def test_a_plain_pickle_file_is_read_whatever_its_protocol(tmp_path: Path) -> None:
    path = tmp_path / "labels.pkl"
    path.write_bytes(pickle.dumps(Calls(eval, "1"), protocol=0))
    assert names(path) == ["builtins.eval"]


def test_raw_weights_of_another_framework_are_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "openvino.bin"
    path.write_bytes(bytes(range(256)))
    assert names(path) == []


def test_torchscript_may_name_its_own_types_and_nothing_else(tmp_path: Path) -> None:
    own = b"\x80\x02c__torch__.net\nNet\n."
    script = ("model/constants.pkl", "model/code/__torch__.py")
    assert names(checkpoint(tmp_path / "a.pt", own, others=script)) == []
    assert names(checkpoint(tmp_path / "b.pt", own)) == ["__torch__.net.Net"]
    assert names(checkpoint(tmp_path / "c.pt", b"\x80\x02cos\nsystem\n.", others=script)) == ["os.system"]


def test_a_damaged_checkpoint_is_told_as_such(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a.pth", pickle.dumps({"a": 1}))
    path.write_bytes(path.read_bytes().replace(b"PK\x03\x04", b"PK\x00\x00"))
    with pytest.raises(errors.ArchiveError, match="save the checkpoint again"):
        safety.scan(path)


def test_the_refusal_names_the_file_the_call_and_the_way_out(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "a.pth", pickle.dumps(Calls(os.system, "true")))
    with pytest.raises(errors.UnsafeWeights, match=r"model\.pth:model/data\.pkl calls .*system.*state_dict"):
        safety.require_safe({"model.pth": path})


def test_what_torch_allows_with_weights_only_is_exactly_what_the_scan_allows() -> None:
    unpickler = pytest.importorskip("torch._weights_only_unpickler")
    allowed = set(unpickler._get_allowed_globals())
    assert {name for name in allowed if not safety._allowed(name)} == set()
    assert safety.ALLOWED - allowed == set()


def test_real_checkpoints_pass_and_a_whole_pickled_model_does_not(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    torch.save(model.state_dict(), tmp_path / "new.pth")
    torch.save(model.state_dict(), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    torch.save({"state": torch.optim.Adam(model.parameters()).state_dict()}, tmp_path / "optimizer.pt")
    torch.save({"half": torch.ones(2, dtype=torch.bfloat16), "kind": torch.float8_e4m3fn}, tmp_path / "types.pt")
    for file in tmp_path.iterdir():
        assert names(file) == [], file.name
    torch.save(model, tmp_path / "whole.pth")
    assert "torch.nn.modules.container.Sequential" in names(tmp_path / "whole.pth")
