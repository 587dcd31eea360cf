"""Re-labelling a server process's metrics.

TorchServe names a request's version "default" when the URL named none, and some metrics have no model at all. The
process serves one version, so the agent knows the true labels of every line. Names are kept as TorchServe wrote them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

SAMPLE_LIMIT = 2_000
"""Samples of one process; a handler that invents labels cannot fill the monitoring."""

LABELS_DROPPED = frozenset(
    {"model_name", "model_version", "ModelName", "ModelVersion", "Hostname", "hostname", "Level"}
)
LABELS_RENAMED = {"WorkerName": "worker"}

FAMILIES_DROPPED = frozenset({"Requests2XX", "Requests4XX", "Requests5XX"})
"""They count the agent's own questions too; the gateway counts answers by status."""

_COUNTER = re.compile(r"^# TYPE (\S+) counter$", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What every line of one process is about."""

    model: str
    version: int
    pool: str

    def as_dict(self) -> dict[str, str]:
        return {"model": self.model, "version": str(self.version), "pool": self.pool}


@dataclass(frozen=True, kw_only=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(kw_only=True)
class Family:
    """One metric: the samples of all its labels."""

    name: str
    help: str
    type: str
    samples: list[Sample] = field(default_factory=list["Sample"])


def relabel(text: str, labels: Labels) -> list[Family]:
    """Parse one process's Prometheus text and give each sample its true labels.

    Text that cannot be parsed ends the result early: what was understood is kept.
    """
    families: list[Family] = []
    counters = set(_COUNTER.findall(text))
    left = SAMPLE_LIMIT
    for parsed in _parse(text):
        # The parser appends "_total" to counters, as OpenMetrics wants it.
        renamed = parsed.type == "counter" and parsed.name in counters
        family = Family(
            name=parsed.name if renamed or parsed.type != "counter" else f"{parsed.name}_total",
            help=parsed.documentation,
            type=parsed.type,
        )
        if family.name in FAMILIES_DROPPED:
            continue
        seen: set[tuple[str, tuple[tuple[str, str], ...]]] = set()
        for sample in parsed.samples[:left]:
            kept = _labels(sample.labels, labels)
            name = sample.name.removesuffix("_total") if renamed else sample.name
            key = (name, tuple(sorted(kept.items())))
            if key not in seen:
                seen.add(key)
                family.samples.append(Sample(name=name, labels=kept, value=sample.value))
        left -= len(family.samples)
        if family.samples:
            families.append(family)
    return families


def merge(processes: Iterable[Iterable[Family]]) -> list[Family]:
    """Join families of the same name: Prometheus refuses a family that is declared twice."""
    merged: dict[str, Family] = {}
    for families in processes:
        for family in families:
            known = merged.setdefault(family.name, Family(name=family.name, help=family.help, type=family.type))
            if known.type == family.type:
                known.samples.extend(family.samples)
    return list(merged.values())


def expose(families: Iterable[Family]) -> str:
    """Write families as Prometheus text (format 0.0.4)."""
    lines: list[str] = []
    for family in families:
        kind = "untyped" if family.type in ("unknown", "info", "stateset", "gaugehistogram") else family.type
        lines.append(f"# HELP {family.name} {_escape(family.help)}")
        lines.append(f"# TYPE {family.name} {kind}")
        for sample in family.samples:
            labels = ",".join(f'{name}="{_escape(value, quote=True)}"' for name, value in sample.labels.items())
            lines.append(f"{sample.name}{{{labels}}} {sample.value!r}")
    return "".join(f"{line}\n" for line in lines)


def _parse(text: str) -> Iterator[Metric]:
    try:
        yield from text_string_to_metric_families(text)
    except ValueError:
        return


def _labels(given: Mapping[str, str], true: Labels) -> dict[str, str]:
    kept = {LABELS_RENAMED.get(name, name): value for name, value in given.items() if name not in LABELS_DROPPED}
    return kept | true.as_dict()


def _escape(text: str, *, quote: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quote else escaped
