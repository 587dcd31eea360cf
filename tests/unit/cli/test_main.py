from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_store import errors as store_errors
from serving.cli import client, entry, errors, main, registry
from serving.local import errors as local_errors
from serving.local.home import Home, Part, PartState, Stack, StackState, Store, Supervisor
from tests.unit.cli.conftest import Run, World

STACK = ("up", "down", "status", "logs")
MODELS = ("push", "apply", "models", "versions", "describe", "events", "predict")
ROLLOUTS = ("promote", "rollback", "abort", "rollouts")


@pytest.mark.parametrize("command", [*STACK, *MODELS, *ROLLOUTS])
def test_every_command_takes_a_home_and_tells_about_itself(run: Run, command: str) -> None:
    result = run(command, "--help")
    assert result.exit_code == 0
    assert "--home" in result.stdout


def test_a_command_that_does_not_exist_is_a_mistake_of_usage(run: Run) -> None:
    result = run("publish")
    assert result.exit_code == 2
    assert "publish" in result.stderr


def test_a_fault_of_ours_is_a_line_and_not_a_traceback(world: World, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("never mind")

    monkeypatch.setattr(registry.Target, "control_plane", broken)
    result = run("models")
    assert result.exit_code == 1
    assert "internal error: ZeroDivisionError: never mind" in result.stderr
    assert "Traceback" not in result.stderr
    monkeypatch.setenv("SLIPWAY_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        run("models")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (local_errors.AlreadyRunning("x"), 4),
        (local_errors.PortTaken("x"), 4),
        (local_errors.NotRunning("x"), 5),
        (local_errors.NotAnswering("x"), 5),
        (local_errors.ProgramMissing("x"), 1),
        (local_errors.HomeUnusable("x"), 1),
        (store_errors.SettingsError("x"), 2),
        (store_errors.SpecError(file=Path("model.yaml"), field="a", problem="x"), 2),
        (store_errors.StoreUnreachable("x"), 5),
        (store_errors.CredentialsRefused("x"), 1),
    ],
)
def test_errors_of_all_packages_have_an_exit_code(error: Exception, code: int) -> None:
    known = errors.known(error)
    assert known is not None
    assert known.exit_code == code


def test_the_end_of_a_failed_parts_log_is_shown_before_the_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise local_errors.PartFailed("store ended", part="store", log_tail=["first", "last"])

    monkeypatch.setattr("serving.local.background.start", fail)
    result = run("up", "-d", "--home", "/nowhere")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-3:] == ["first", "last", "slipway: store ended"]


def written(home: Home, *, supervisor: Supervisor | None) -> None:
    home.create()
    part = Part(name="store", pid=1, state=PartState.READY)
    store = Store(url="s3://slipway", endpoint="http://127.0.0.1:3", secret_key="hush")
    home.write(
        Stack(
            gateway="http://127.0.0.1:1",
            control_plane="http://127.0.0.1:2",
            agent="",
            store=store,
            ports={},
            state=StackState.READY,
            supervisor=supervisor,
            parts=[part],
        )
    )


def test_status_has_what_scripts_rely_on_and_no_secret(run: Run, tmp_path: Path) -> None:
    written(Home(tmp_path), supervisor=Supervisor.this())
    result = run("status", "--home", str(tmp_path), "--output", "json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["gateway"] == "http://127.0.0.1:1"
    assert document["control_plane"] == "http://127.0.0.1:2"
    assert document["store"] == "http://127.0.0.1:3"
    assert {"name": "store", "pid": 1, "state": "ready"}.items() <= document["parts"][0].items()
    assert "hush" not in result.stdout
    assert run("status", "--home", str(tmp_path)).exit_code == 0


def test_status_of_a_stack_that_does_not_run_exits_5(run: Run, tmp_path: Path) -> None:
    assert run("status", "--home", str(tmp_path)).exit_code == 5
    written(Home(tmp_path), supervisor=Supervisor(pid=1, create_time=1))
    result = run("status", "--home", str(tmp_path))
    assert result.exit_code == 5
    assert "slipway up" in result.stderr
    assert run("down", "--home", str(tmp_path)).exit_code == 5


def test_a_command_without_a_stack_says_how_to_get_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLIPWAY_CONTROL_URL", raising=False)
    result = run("models", "--home", str(tmp_path))
    assert result.exit_code == 5
    assert "slipway up -d" in result.stderr


def test_logs_are_those_of_the_part(run: Run, tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.create()
    home.log("agent").write_text('{"time": "T", "level": "info", "message": "hello"}\nplain\n')
    home.log("store").write_text("other\n")
    assert run("logs", "agent", "--home", str(tmp_path)).stdout == "T info    hello\nplain\n"
    assert run("logs", "agent", "--raw", "-n", "2", "--home", str(tmp_path)).stdout.startswith('{"time"')
    assert "store          other" in run("logs", "--home", str(tmp_path)).stdout
    missing = run("logs", "nothing", "--home", str(tmp_path))
    assert missing.exit_code == 3
    assert "agent, store" in missing.stderr


def test_ctrl_c_while_the_command_is_imported_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "main", interrupted)
    assert entry.main() == entry.INTERRUPTED == 130


def test_an_address_that_is_no_url_is_a_mistake_of_usage() -> None:
    with pytest.raises(errors.Usage, match="no URL of a control plane"):
        client.ControlPlane("junk").get("/v1/models")
