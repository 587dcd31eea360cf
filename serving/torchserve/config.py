"""The files and flags of a server process, as pure functions of what is to be served.

TorchServe fills every setting that is left out with a default that hurts somewhere, so none is left out here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from model_store.manifest import Serving
from serving.torchserve import errors
from serving.torchserve.installation import Installation
from serving.torchserve.ports import LOOPBACK, Ports

MIB = 1024 * 1024

THREADS_PER_WORKER = 4
"""Beyond this many threads a second worker gains more than a wider one."""

MAX_RETRY_TIMEOUT_S = 60
"""How long TorchServe itself restarts a dying worker; after that the agent restarts the process."""

STARTUP_MARGIN_S = 60
"""Java's own start, on top of a worker's startup timeout."""

LOG_BYTES = 8 * MIB
LOG_FILES = 2
LOG_LINE_CHARACTERS = 8192

# What the agent's environment holds for itself: a model's code gets neither credentials nor TorchServe's switches
# (TS_CONFIG_FILE alone would replace the whole configuration).
PRIVATE_PREFIXES = ("AWS_", "SLIPWAY_", "TS_")
PRIVATE_NAMES = ("LOG_LOCATION", "METRICS_LOCATION", "SM_TELEMETRY_LOG", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How a version shares the replica's cores."""

    workers: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The folder of one server process; nothing outside of it (but a short socket folder) is written."""

    root: Path
    temp: Path
    """Private temporary folder: TorchServe's worker sockets and its links to the model live here."""

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def properties(self) -> Path:
        return self.root / "conf" / "config.properties"

    @property
    def log4j(self) -> Path:
        return self.root / "conf" / "log4j2.xml"

    @property
    def metrics(self) -> Path:
        return self.root / "conf" / "metrics.yaml"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def server_log(self) -> Path:
        return self.logs / "server.log"

    @property
    def worker_log(self) -> Path:
        return self.logs / "worker.log"

    @property
    def output(self) -> Path:
        """What Java writes to standard output and error past its logging: a crash of the JVM itself."""
        return self.logs / "output.log"


def fit(serving: Serving, *, cores: int, models: int) -> Fit:
    """Share the replica's cores among the models that it serves.

    Versions of one model share that model's part: they also share its traffic, and a promotion must not halve the
    threads of the version that is to stay.

    Args:
        serving: what the manifest asks for; given numbers are kept.
        cores: cores of the replica.
        models: how many different models the replica serves, this one included.
    """
    share = max(1, cores // max(1, models))
    if serving.threads is not None:
        return Fit(workers=serving.workers or max(1, share // serving.threads), threads=serving.threads)
    workers = serving.workers or max(1, share // THREADS_PER_WORKER)
    return Fit(workers=workers, threads=max(1, share // workers))


def properties(
    *, model: str, serving: Serving, fitted: Fit, layout: Layout, ports: Ports, host: str, cores: int, gpus: int
) -> str:
    """``config.properties`` of one process.

    Args:
        host: address of the inference ports; everything else is loopback.
        cores: of the replica, for the size of Netty's pools.
        gpus: how many GPUs the workers may use; 0 keeps TorchServe from looking for one.

    Raises:
        InvalidSetting: a path or host that TorchServe would cut apart.
    """
    if "," in str(layout.model) or ".." in str(layout.model):
        raise errors.InvalidSetting(
            f'TorchServe cannot load from {layout.model}: the path holds "," or ".."; choose another SLIPWAY_AGENT_HOME'
        )
    if ":" in host or "/" in host:
        raise errors.InvalidSetting(f"{host!r} is not an IPv4 address or host name; TorchServe listens on no other")
    threads = max(2, min(8, cores))
    values: dict[str, Any] = {
        "inference_address": f"http://{host}:{ports.rest}",
        "management_address": f"http://{LOOPBACK}:{ports.management}",
        "metrics_address": f"http://{LOOPBACK}:{ports.metrics}",
        "grpc_inference_address": host,
        "grpc_inference_port": ports.grpc,
        "grpc_management_address": LOOPBACK,
        "grpc_management_port": ports.grpc_management,
        "model_store": layout.root,
        "load_models": f"{model}={layout.model}",
        "default_workers_per_model": fitted.workers,
        "default_response_timeout": serving.response_timeout_s,
        "default_startup_timeout": serving.startup_timeout_s,
        "unregister_model_timeout": 30,
        "job_queue_size": serving.queue_size,
        "number_of_netty_threads": threads,
        "netty_client_threads": threads,
        "number_of_gpu": gpus,
        "max_request_size": serving.max_request_bytes,
        "max_response_size": serving.max_response_bytes,
        "limit_max_image_pixels": "true",
        "metrics_config": layout.metrics,
        "metrics_mode": "prometheus",
        "model_metrics_auto_detect": "true",
        "disable_system_metrics": "true",
        # Tokens are random per process and guard /ping too; the gateway is the one that asks who somebody is.
        "disable_token_authorization": "true",
        "enable_model_api": "false",
        "install_py_dep_per_model": "false",
        "enable_envvars_config": "false",
        "allowed_urls": "none://.*",
        "use_native_io": "true",
        "prefer_direct_buffer": "false",
        "async_logging": "false",
        "cpu_launcher_enable": "false",
        "ipex_enable": "false",
        "decode_input_request": "true",
        "ts_open_inference_protocol": "false",
    }
    return "".join(f"{key}={value}\n" for key, value in values.items())


def model_config(*, serving: Serving, fitted: Fit, device: str) -> str:
    """``model-config.yaml`` of the version. One setting left out would bring back a default of 120 s or worse."""
    return yaml.safe_dump(
        {
            "minWorkers": fitted.workers,
            "maxWorkers": fitted.workers,
            "batchSize": serving.batch_size,
            "maxBatchDelay": serving.max_batch_delay_ms,
            "responseTimeout": serving.response_timeout_s,
            "startupTimeout": serving.startup_timeout_s,
            "maxRetryTimeoutInSec": MAX_RETRY_TIMEOUT_S,
            "jobQueueSize": serving.queue_size,
            "deviceType": device,
            "useJobTicket": False,
            "continuousBatching": False,
            "sequenceBatching": False,
            "asyncCommunication": False,
        },
        sort_keys=False,
    )


def patch_archive_manifest(document: str, *, model: str, version: int, config_file: str) -> str:
    """``MAR-INF/MANIFEST.json`` of the private copy: TorchServe takes name, version and configuration from it."""
    manifest: dict[str, Any] = json.loads(document)
    described: dict[str, Any] = manifest.setdefault("model", {})
    described |= {"modelName": model, "modelVersion": str(version), "configFile": config_file}
    # Files that the agent never installs: requirements are checked by the handler, not fetched at start.
    described.pop("requirementsFile", None)
    manifest.setdefault("runtime", "python")
    # TorchServe warns when these are missing; the archive leaves the date out, so that its digest does not change.
    manifest.setdefault("archiverVersion", "0.12.0")
    manifest.setdefault("createdOn", "01/01/1980 00:00:00")
    return json.dumps(manifest, indent=2)


def metrics_config() -> str:
    """``metrics.yaml``: the frontend's counters; what handlers emit is detected (its type is in the line)."""
    by_level = ["Level", "Hostname"]
    by_version = ["model_name", "model_version", "hostname"]
    counters = [{"name": f"Requests{code}", "unit": "Count", "dimensions": by_level} for code in ("2XX", "4XX", "5XX")]
    counters += [
        {"name": "ts_inference_requests_total", "unit": "Count", "dimensions": by_version},
        {"name": "ts_inference_latency_microseconds", "unit": "Microseconds", "dimensions": by_version},
        {"name": "ts_queue_latency_microseconds", "unit": "Microseconds", "dimensions": by_version},
    ]
    gauges = [
        {"name": "QueueTime", "unit": "Milliseconds", "dimensions": by_level},
        {"name": "WorkerThreadTime", "unit": "Milliseconds", "dimensions": by_level},
        {"name": "WorkerLoadTime", "unit": "Milliseconds", "dimensions": ["WorkerName", *by_level]},
    ]
    backend = [
        {"name": name, "unit": "ms", "dimensions": ["ModelName", "Level"]} for name in ("HandlerTime", "PredictionTime")
    ]
    return yaml.safe_dump(
        {
            "dimensions": sorted({"ModelName", "WorkerName", *by_level, *by_version}),
            "ts_metrics": {"counter": counters, "gauge": gauges},
            "model_metrics": {"gauge": backend},
        },
        sort_keys=False,
    )


def log4j(*, layout: Layout, model: str, version: int) -> str:
    """``log4j2.xml``: JSON lines, the server at *warn* (logging is the largest cost of a request), files bounded.

    The workers' output is kept at *info*: Python's logging reaches it as standard output, tracebacks too. Each line
    and the number of files is limited, so a handler that prints megabytes fills nothing. The one line that TorchServe
    itself prints for every batch is dropped.
    """
    files = "".join(
        f"""
    <RollingFile name="{name}" fileName="{path}" filePattern="{path}.%i">
      <PatternLayout alwaysWriteExceptions="false" pattern="{_pattern(part, model, version)}"/>
      <Policies><SizeBasedTriggeringPolicy size="{LOG_BYTES}"/></Policies>
      <DefaultRolloverStrategy max="{LOG_FILES}"/>
    </RollingFile>"""
        for name, path, part in (
            ("server", layout.server_log, "server-process"),
            ("worker", layout.worker_log, "worker"),
        )
    )
    return f"""<?xml version="1.0" encoding="UTF-8"?>
<Configuration status="error" shutdownHook="disable">
  <Appenders>{files}
  </Appenders>
  <Loggers>
    <Logger name="MODEL_LOG" level="info" additivity="false">
      <RegexFilter regex="Backend received inference at.*" onMatch="DENY" onMismatch="NEUTRAL"/>
      <AppenderRef ref="worker"/>
    </Logger>
    <Logger name="ACCESS_LOG" level="off"/>
    <Logger name="MODEL_METRICS" level="off"/>
    <Logger name="TS_METRICS" level="off"/>
    <Logger name="TELEMETRY_METRICS" level="off"/>
    <Logger name="io.netty" level="error"/>
    <Logger name="org.apache" level="error"/>
    <Root level="warn"><AppenderRef ref="server"/></Root>
  </Loggers>
</Configuration>
"""


def _pattern(part: str, model: str, version: int) -> str:
    text = (
        '{"time":"%d{yyyy-MM-dd\'T\'HH:mm:ss.SSS}{UTC}Z","level":"%level{lowerCase=true}",'
        f'"part":"{part}","model":"{model}","version":{version},'
        f'"thread":"%enc{{%t}}{{JSON}}","logger":"%c{{1}}",'
        f'"message":"%enc{{%maxLen{{%m}}{{{LOG_LINE_CHARACTERS}}}}}{{JSON}}",'
        '"traceback":"%enc{%throwable{40}}{JSON}"}%n'
    )
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def heap_bytes(serving: Serving) -> int:
    """Bound of Java's heap, and of its memory outside the heap.

    A request is held about twice while it waits. A full queue of the largest allowed requests is not provided for:
    past this bound the JVM exits and is restarted (ExitOnOutOfMemoryError), rather than crawl.
    """
    return 256 * MIB + 8 * max(serving.max_request_bytes, serving.max_response_bytes)


def command(*, installation: Installation, layout: Layout, serving: Serving) -> list[str]:
    """Java's argv. No shell stands between, so a SIGTERM to the process reaches TorchServe."""
    bound = heap_bytes(serving)
    return [
        installation.java,
        "--enable-native-access=ALL-UNNAMED",
        "-Xms64m",
        f"-Xmx{bound}",
        f"-XX:MaxDirectMemorySize={bound}",
        "-XX:+ExitOnOutOfMemoryError",
        f"-XX:ErrorFile={layout.logs / 'jvm-crash.log'}",
        f"-Djava.io.tmpdir={layout.temp}",
        f"-Dmodel_server_home={installation.home}",
        f"-Dlog4j.configurationFile=file://{layout.log4j}",
        "-Dlog4j2.formatMsgNoLookups=true",
        f"-DLOG_LOCATION={layout.logs}",
        f"-DMETRICS_LOCATION={layout.logs}",
        "-cp",
        installation.classpath,
        "org.pytorch.serve.ModelServer",
        "--python",
        installation.python,
        "-f",
        str(layout.properties),
        "-ncs",
    ]


def environment(inherited: Mapping[str, str], *, layout: Layout, fitted: Fit) -> dict[str, str]:
    """Environment of Java and, through it, of the workers.

    Args:
        inherited: the agent's own environment; credentials and switches of TorchServe are left out.
    """
    kept = {
        name: value
        for name, value in inherited.items()
        if not name.startswith(PRIVATE_PREFIXES) and name not in PRIVATE_NAMES
    }
    threads = str(fitted.threads)
    # A thread that waits for another must sleep, not spin: both versions of a model run during a promotion, and with
    # more threads than cores spinning made a small model's batch take 20 times as long (14 ms of CPU for 0.5).
    return (
        {"OMP_WAIT_POLICY": "PASSIVE"}
        | kept
        | {
            "TEMP": str(layout.temp),
            "TMPDIR": str(layout.temp),
            "OMP_NUM_THREADS": threads,
            "MKL_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "NUMEXPR_MAX_THREADS": threads,
            "TOKENIZERS_PARALLELISM": "false",
            "HF_HUB_OFFLINE": "1",
            "TRANSFORMERS_OFFLINE": "1",
            "PYTHONUNBUFFERED": "1",
        }
    )
