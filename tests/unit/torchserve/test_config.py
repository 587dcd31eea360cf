from __future__ import annotations

import json
import xml.etree.ElementTree
from pathlib import Path

import pytest
import yaml

from model_store.manifest import Serving
from serving.torchserve import config, errors
from serving.torchserve.config import Fit, Layout
from serving.torchserve.installation import Installation
from serving.torchserve.ports import Ports

LAYOUT = Layout(root=Path("/home/agent/servers/resnet-3-abc"), temp=Path("/home/agent/servers/resnet-3-abc/tmp"))
PORTS = Ports(rest=1001, grpc=1002, management=1003, metrics=1004, grpc_management=1005)
INSTALLATION = Installation(python="/venv/bin/python", java="/jdk/bin/java", home=Path("/venv/site-packages"))


def read_properties(serving: Serving | None = None, *, host: str = "10.0.0.7") -> dict[str, str]:
    text = config.properties(
        model="resnet",
        serving=serving or Serving(),
        fitted=Fit(workers=2, threads=1),
        layout=LAYOUT,
        ports=PORTS,
        host=host,
        cores=2,
        gpus=0,
    )
    return dict(line.split("=", 1) for line in text.splitlines())


@pytest.mark.parametrize(
    ("cores", "models", "serving", "expected"),
    [
        (2, 1, Serving(), Fit(workers=1, threads=2)),
        (2, 2, Serving(), Fit(workers=1, threads=1)),
        (1, 5, Serving(), Fit(workers=1, threads=1)),
        (16, 1, Serving(), Fit(workers=4, threads=4)),
        (16, 4, Serving(), Fit(workers=1, threads=4)),
        (16, 1, Serving(workers=2), Fit(workers=2, threads=8)),
        (16, 1, Serving(threads=2), Fit(workers=8, threads=2)),
        (2, 1, Serving(workers=8), Fit(workers=8, threads=1)),
        (2, 1, Serving(workers=1, threads=16), Fit(workers=1, threads=16)),
    ],
)
def test_workers_and_threads_fit_the_cores_and_keep_what_the_manifest_says(
    cores: int, models: int, serving: Serving, expected: Fit
) -> None:
    assert config.fit(serving, cores=cores, models=models) == expected


def test_only_the_inference_ports_listen_beyond_loopback() -> None:
    values = read_properties()
    assert values["inference_address"] == "http://10.0.0.7:1001"
    assert (values["grpc_inference_address"], values["grpc_inference_port"]) == ("10.0.0.7", "1002")
    others = ["management_address", "metrics_address", "grpc_management_address"]
    assert all("127.0.0.1" in values[name] for name in others)


def test_what_would_let_a_client_change_the_server_is_off() -> None:
    values = read_properties()
    assert values["enable_model_api"] == "false"
    assert values["install_py_dep_per_model"] == "false"
    assert values["enable_envvars_config"] == "false"
    assert "http" not in values["allowed_urls"]


def test_sizes_and_timeouts_come_from_the_manifest() -> None:
    serving = Serving(max_request_bytes=2048, max_response_bytes=4096, queue_size=7, response_timeout_s=11)
    values = read_properties(serving)
    assert (values["max_request_size"], values["max_response_size"]) == ("2048", "4096")
    assert (values["job_queue_size"], values["default_response_timeout"]) == ("7", "11")


def test_every_timeout_of_the_model_is_written_out() -> None:
    serving = Serving(response_timeout_s=11, startup_timeout_s=22, queue_size=33, batch_size=4, max_batch_delay_ms=6)
    written = yaml.safe_load(config.model_config(serving=serving, fitted=Fit(workers=2, threads=1), device="cpu"))
    assert written["minWorkers"] == written["maxWorkers"] == 2
    assert (written["responseTimeout"], written["startupTimeout"]) == (11, 22)
    assert (written["jobQueueSize"], written["batchSize"], written["maxBatchDelay"]) == (33, 4, 6)
    assert written["maxRetryTimeoutInSec"] == config.MAX_RETRY_TIMEOUT_S
    assert written["deviceType"] == "cpu"


@pytest.mark.parametrize("root", ["/a,b", "/a/../b", "/model..x"])
def test_a_path_that_torchserve_would_cut_apart_is_refused(root: str) -> None:
    layout = Layout(root=Path(root), temp=Path("/tmp"))
    with pytest.raises(errors.InvalidSetting, match="SLIPWAY_AGENT_HOME"):
        config.properties(
            model="m",
            serving=Serving(),
            fitted=Fit(workers=1, threads=1),
            layout=layout,
            ports=PORTS,
            host="127.0.0.1",
            cores=1,
            gpus=0,
        )


def test_an_ipv6_address_is_refused_instead_of_misread() -> None:
    with pytest.raises(errors.InvalidSetting, match="IPv4"):
        read_properties(host="fd00::1")


def test_logging_is_json_at_warn_with_the_workers_bounded() -> None:
    text = config.log4j(layout=LAYOUT, model="resnet", version=3)
    tree = xml.etree.ElementTree.fromstring(text)
    root = tree.find("Loggers/Root")
    assert root is not None and root.get("level") == "warn"
    patterns = [layout.get("pattern") or "" for layout in tree.iter("PatternLayout")]
    assert len(patterns) == 2
    for pattern in patterns:
        assert '"model":"resnet","version":3' in pattern
        assert pattern.count("{JSON}") == pattern.count("%enc"), "user text is always escaped"
        assert "%maxLen{%m}" in pattern
    policies = [policy.get("size") for policy in tree.iter("SizeBasedTriggeringPolicy")]
    assert policies == [str(config.LOG_BYTES)] * 2


def test_java_is_launched_without_a_shell_and_with_its_memory_bounded() -> None:
    argv = config.command(installation=INSTALLATION, layout=LAYOUT, serving=Serving(max_request_bytes=1024 * 1024))
    assert argv[0] == "/jdk/bin/java"
    assert any(part.startswith("-Xmx") for part in argv)
    assert any(part.startswith("-XX:MaxDirectMemorySize=") for part in argv)
    assert "-XX:+ExitOnOutOfMemoryError" in argv
    assert "--enable-native-access=ALL-UNNAMED" in argv
    assert f"-Djava.io.tmpdir={LAYOUT.temp}" in argv
    assert argv[-1] == "-ncs"


def test_a_worker_inherits_neither_credentials_nor_switches_of_torchserve() -> None:
    inherited = {
        "PATH": "/bin",
        "PYTHONPATH": "/code",
        "AWS_SECRET_ACCESS_KEY": "s",
        "SLIPWAY_DATABASE_URL": "d",
        "TS_CONFIG_FILE": "/evil",
        "LOG_LOCATION": "/evil",
        "OMP_NUM_THREADS": "64",
    }
    given = config.environment(inherited, layout=LAYOUT, fitted=Fit(workers=1, threads=3))
    assert given["PATH"] == "/bin"
    assert given["PYTHONPATH"] == "/code"
    assert (given["OMP_NUM_THREADS"], given["MKL_NUM_THREADS"]) == ("3", "3")
    assert given["TMPDIR"] == str(LAYOUT.temp)
    assert not {"AWS_SECRET_ACCESS_KEY", "SLIPWAY_DATABASE_URL", "TS_CONFIG_FILE", "LOG_LOCATION"} & set(given)


def test_waiting_threads_sleep_unless_the_operator_says_otherwise() -> None:
    def policy(**inherited: str) -> str:
        return config.environment(inherited, layout=LAYOUT, fitted=Fit(workers=1, threads=2))["OMP_WAIT_POLICY"]

    assert policy() == "PASSIVE"
    assert policy(OMP_WAIT_POLICY="ACTIVE") == "ACTIVE"


def test_the_private_copy_names_its_model_version_and_configuration() -> None:
    packed = json.dumps({"runtime": "python", "model": {"handler": "h.py", "modelName": "x", "requirementsFile": "r"}})
    patched = json.loads(
        config.patch_archive_manifest(packed, model="resnet", version=3, config_file="model-config.yaml")
    )
    assert patched["model"] == {
        "handler": "h.py",
        "modelName": "resnet",
        "modelVersion": "3",
        "configFile": "model-config.yaml",
    }
