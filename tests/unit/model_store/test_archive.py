"""Pack: the same bytes for the same content. Unpack: nothing outside, nothing beyond the limits."""

from __future__ import annotations

import json
import os
import stat
import struct
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest

from model_store import archive, errors, layout, manifest, provenance, spec, unpacking


@pytest.fixture
def model(tmp_path: Path) -> spec.Spec:
    home = tmp_path / "model"
    (home / "labels").mkdir(parents=True)
    (home / "tokenizer").mkdir()
    (home / "weights.safetensors").write_bytes(os.urandom(archive.LINK_FROM_BYTES + 5))
    (home / "handler.py").write_text("class Handler: ...\n")
    (home / "net.py").write_text("def build(): ...\n")
    (home / "labels" / "index_to_name.json").write_text("{}")
    (home / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    (home / "seven.png").write_bytes(b"png")
    (home / "model.yaml").write_text(
        """
name: digits
description: Handwritten digits
handler: handler.py
model_file: weights.safetensors
architecture: net.py:build
files: {index_to_name.json: labels/index_to_name.json, vocab.txt: tokenizer/vocab.txt}
requirements: ["numpy>=2"]
golden: [{input: seven.png, expected: {label: "7"}}]
metrics: {held_out_accuracy: 0.98}
"""
    )
    [loaded] = spec.load(home / "model.yaml")
    return loaded


def test_an_archive_holds_the_entry_the_config_and_every_file_under_its_name(model: spec.Spec, tmp_path: Path) -> None:
    packed = archive.pack(archive.stage(model, tmp_path / "stage"), tmp_path / "a.mar")
    total = archive.unpack(packed.path, tmp_path / "out", limits=archive.Limits(unpacked_bytes=packed.unpacked_bytes))
    found = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.*"))
    assert found == [
        "MAR-INF/MANIFEST.json",
        "golden/seven.png",
        "handler.py",
        "index_to_name.json",
        "net.py",
        "slipway.json",
        "slipway_handler.py",
        "vocab.txt",
        "weights.safetensors",
    ]
    assert total == packed.unpacked_bytes
    assert (tmp_path / "out" / "slipway_handler.py").read_text() == (
        "from handlers import runtime\n\nhandle = runtime.entry(__file__)\n"
    )
    config = manifest.ArchiveConfig.model_validate_json((tmp_path / "out" / "slipway.json").read_bytes())
    assert config == packed.config
    assert config.handler == "file:handler.py"
    assert config.architecture == "file:net.py:build"
    mar: Any = json.loads((tmp_path / "out" / layout.MAR_MANIFEST).read_text())
    assert mar["model"]["handler"] == "slipway_handler.py"
    assert mar["model"]["serializedFile"] == "weights.safetensors"
    assert mar["model"]["modelFile"] == "net.py"


def test_packing_the_same_content_twice_gives_the_same_digest_whatever_the_file_times(
    model: spec.Spec, tmp_path: Path
) -> None:
    first = archive.pack(archive.stage(model, tmp_path / "one"), tmp_path / "one.mar")
    for path in model.files.values():
        os.utime(path, (1, 1))
        path.chmod(0o755)
    second = archive.pack(archive.stage(model, tmp_path / "two"), tmp_path / "two.mar")
    assert first.digest == second.digest
    (tmp_path / "model" / "net.py").write_text("def build(): return None\n")
    third = archive.pack(archive.stage(model, tmp_path / "three"), tmp_path / "three.mar")
    assert third.digest != first.digest


def test_what_a_replay_leaves_in_the_staging_folder_is_not_packed(model: spec.Spec, tmp_path: Path) -> None:
    staged = archive.stage(model, tmp_path / "stage")
    (staged.folder / "__pycache__").mkdir()
    (staged.folder / "__pycache__" / "x.pyc").write_bytes(b"x")
    packed = archive.pack(staged, tmp_path / "a.mar")
    assert not any("pycache" in name for name in zipfile.ZipFile(packed.path).namelist())


def test_large_weights_are_linked_not_copied(model: spec.Spec, tmp_path: Path) -> None:
    staged = archive.stage(model, tmp_path / "stage")
    assert (staged.folder / "weights.safetensors").samefile(model.files["weights.safetensors"])
    assert not (staged.folder / "net.py").samefile(model.files["net.py"])


def test_staging_leaves_a_folder_of_the_models_name_in_the_temp_folder_alone(
    model: spec.Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temp" / "digits").mkdir(parents=True)
    (tmp_path / "temp" / "digits" / "mine").touch()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temp"))
    archive.stage(model, tmp_path / "stage")
    assert (tmp_path / "temp" / "digits" / "mine").exists()


def test_staging_refuses_a_folder_that_holds_something(model: spec.Spec, tmp_path: Path) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "old").touch()
    with pytest.raises(errors.ArchiveError, match="not empty"):
        archive.stage(model, tmp_path / "stage")


def test_the_manifest_names_what_was_packed_and_keeps_the_authors_expectations(
    model: spec.Spec, tmp_path: Path
) -> None:
    packed = archive.pack(archive.stage(model, tmp_path / "stage"), tmp_path / "a.mar")
    replayed = [manifest.GoldenOutput(file="golden/seven.png", expected={"label": "1"})]
    document = provenance.manifest_for(packed, model, golden=replayed, frameworks={"torch": "9"})
    assert (document.digest, document.size_bytes) == (packed.digest, packed.path.stat().st_size)
    assert document.golden[0].expected == {"label": "7"}
    assert document.metrics == {"held_out_accuracy": 0.98}
    assert document.provenance.frameworks["torch"] == "9"
    assert document.provenance.source == "model.yaml"
    assert document.config.requirements == ["numpy>=2"]


def zipped(path: Path, *entries: tuple[str | zipfile.ZipInfo, bytes], deflate: bool = False) -> Path:
    method = zipfile.ZIP_DEFLATED if deflate else zipfile.ZIP_STORED
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as made:
        warnings.simplefilter("ignore")  # zipfile's own about a name that stands there twice
        for name, body in entries:
            made.writestr(name, body)
    return path


@pytest.mark.parametrize(
    "name",
    [
        "../outside",
        "a/../../outside",
        "/etc/outside",
        "a//b",
        "./a",
        "a\\..\\b",
        "C:/outside",
        "line\nbreak",
    ],
)
def test_names_that_lead_elsewhere_are_refused_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    made = zipped(tmp_path / "a.mar", ("good", b"x"), (name, b"x"))
    with pytest.raises(errors.UnsafeArchive, match="refused entry"):
        archive.unpack(made, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.mar"]


def test_a_name_cut_by_a_zero_byte_is_refused(tmp_path: Path) -> None:
    made = zipped(tmp_path / "a.mar", ("good#evil", b"x"))
    made.write_bytes(made.read_bytes().replace(b"good#evil", b"good\0evil"))
    with pytest.raises(errors.ArchiveError):
        archive.unpack(made, tmp_path / "out")


def test_an_entry_without_a_name_is_refused(tmp_path: Path) -> None:
    made = zipped(tmp_path / "a.mar", ("good", b"x"))
    body = bytearray(made.read_bytes())
    at = body.index(b"PK\x01\x02")
    body[at + 28 : at + 30] = struct.pack("<H", 0)
    del body[at + 46 : at + 50]
    end = body.index(b"PK\x05\x06")
    body[end + 12 : end + 16] = struct.pack("<I", end - at)
    made.write_bytes(bytes(body))
    with pytest.raises(errors.UnsafeArchive, match="a name has"):
        archive.unpack(made, tmp_path / "out")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_special_files_are_refused(tmp_path: Path, kind: int) -> None:
    info = zipfile.ZipInfo("link")
    info.external_attr = (kind | 0o777) << 16
    with pytest.raises(errors.UnsafeArchive, match="link or a special file"):
        archive.unpack(zipped(tmp_path / "a.mar", (info, b"/etc/passwd")), tmp_path / "out")


def test_an_entry_that_stands_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UnsafeArchive, match="twice"):
        archive.unpack(zipped(tmp_path / "a.mar", ("a", b"1"), ("a", b"2")), tmp_path / "out")


def test_a_name_that_is_file_and_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.UnsafeArchive, match="both a file and a folder"):
        archive.unpack(zipped(tmp_path / "a.mar", ("a", b"1"), ("a/b", b"2")), tmp_path / "out")


def test_a_bomb_is_refused_by_its_ratio(tmp_path: Path) -> None:
    made = zipped(tmp_path / "a.mar", ("zeros", bytes(20 * 1024 * 1024)), deflate=True)
    with pytest.raises(errors.UnsafeArchive, match="200 times its packed size"):
        archive.unpack(made, tmp_path / "out")


def test_more_bytes_or_files_than_allowed_are_refused_with_the_limit(tmp_path: Path) -> None:
    made = zipped(tmp_path / "a.mar", ("a", bytes(600)), ("b", bytes(600)))
    with pytest.raises(errors.UnsafeArchive, match="the limit is 1000"):
        archive.unpack(made, tmp_path / "out", limits=unpacking.Limits(max_bytes=1000))
    with pytest.raises(errors.UnsafeArchive, match="the limit is 1"):
        archive.unpack(made, tmp_path / "out", limits=unpacking.Limits(max_files=1))
    with pytest.raises(errors.UnsafeArchive, match="its manifest says 1199"):
        archive.unpack(made, tmp_path / "out", limits=unpacking.Limits(unpacked_bytes=1199))


def test_a_size_that_lies_does_not_get_more_onto_the_disk(tmp_path: Path) -> None:
    made = zipped(tmp_path / "a.mar", ("a", bytes(5000)), deflate=True)
    body = bytearray(made.read_bytes())
    at = body.index(b"PK\x01\x02") + 24
    body[at : at + 4] = struct.pack("<I", 10)
    made.write_bytes(bytes(body))
    with pytest.raises(errors.ArchiveError):
        archive.unpack(made, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_encrypted_entries_are_refused(tmp_path: Path) -> None:
    made = zipped(tmp_path / "a.mar", ("a", b"1"))
    body = bytearray(made.read_bytes())
    body[body.index(b"PK\x01\x02") + 8] |= 1
    made.write_bytes(bytes(body))
    with pytest.raises(errors.UnsafeArchive, match="encrypted"):
        archive.unpack(made, tmp_path / "out")


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_archive_is_one_clear_error(model: spec.Spec, tmp_path: Path, keep: float) -> None:
    packed = archive.pack(archive.stage(model, tmp_path / "stage"), tmp_path / "a.mar")
    os.truncate(packed.path, int(keep * packed.size_bytes) if keep < 1 else int(keep))
    with pytest.raises(errors.ArchiveError, match="truncated or damaged"):
        archive.unpack(packed.path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_flipped_bit_is_caught_and_leaves_nothing_behind(model: spec.Spec, tmp_path: Path) -> None:
    packed = archive.pack(archive.stage(model, tmp_path / "stage"), tmp_path / "a.mar")
    body = bytearray(packed.path.read_bytes())
    body[len(body) // 2] ^= 1
    packed.path.write_bytes(bytes(body))
    with pytest.raises(errors.ArchiveError, match="damaged"):
        archive.unpack(packed.path, tmp_path / "out")
    assert not any(path.name.startswith(".out") for path in tmp_path.iterdir())


def test_unpacking_never_merges_into_a_folder_that_holds_something(model: spec.Spec, tmp_path: Path) -> None:
    packed = archive.pack(archive.stage(model, tmp_path / "stage"), tmp_path / "a.mar")
    (tmp_path / "out").mkdir()
    archive.unpack(packed.path, tmp_path / "out")
    with pytest.raises(errors.ArchiveError, match="exists already"):
        archive.unpack(packed.path, tmp_path / "out")


def test_a_disk_that_cannot_hold_it_is_named_before_anything_is_written(
    model: spec.Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = archive.pack(archive.stage(model, tmp_path / "stage"), tmp_path / "a.mar")
    usage = __import__("shutil").disk_usage(tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=10))
    with pytest.raises(errors.NoSpace, match="10 are free"):
        archive.unpack(packed.path, tmp_path / "out")
    with pytest.raises(errors.NoSpace):
        archive.pack(archive.stage(model, tmp_path / "stage2"), tmp_path / "b.mar")
