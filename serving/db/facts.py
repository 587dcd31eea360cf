"""Reads the world as the rules want it: one consistent moment, in few queries."""

from __future__ import annotations

from datetime import datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.orm import Session

from model_store.manifest import Manifest
from serving.db import published, reports, stages, tables
from serving.domain import facts, wire

BLIND_AFTER_S = 10.0
"""When nobody has reconciled for longer than this, reports could not come in: silence before is not held against
their senders."""

SLACK_S = 5.0
"""Rows of replaced versions are read a little past the window; the rules decide exactly."""


class Reader:
    """Keeps what never changes (manifests, configurations by revision) between readings."""

    def __init__(self, *, limits: facts.Limits) -> None:
        self.limits = limits
        self._versions: dict[wire.VersionRef, facts.Version] = {}
        self._configs: dict[str, wire.GatewayConfig] = {}
        self._reports: dict[str, tuple[str, wire.ReplicaReport]] = {}
        """Replica → its last report, beside the fingerprint that says whether it is still that one."""

    def read(self, session: Session, *, now: datetime) -> facts.Facts:
        self._load_versions(session)
        pools = published.pools(session)
        gateways = reports.gateways(session)
        self._load_configs(session, {row.report.get("applied_revision") for row in gateways})
        since = now - timedelta(seconds=self.limits.rollback_window_s + SLACK_S)
        return facts.Facts(
            now=now,
            observing_since=observing_since(session, now=now),
            limits=self.limits,
            models=tuple(session.scalars(sa.select(tables.Model.name).order_by(tables.Model.name))),
            versions=self._versions,
            stages=stages.all_stages(session),
            rollouts=tuple(stages.active(session)),
            replaced=tuple(stages.replaced_since(session, since)),
            replicas=self._replicas(session),
            gateways=tuple(self._gateway(row) for row in gateways),
            generations={pool.name: pool.generation for pool in pools},
        )

    def _load_versions(self, session: Session) -> None:
        """Versions are immutable and never deleted, so only new ones have to be read."""
        count = session.scalar(sa.select(sa.func.count()).select_from(tables.Version)) or 0
        if count == len(self._versions):
            return
        keys = session.execute(sa.select(tables.Version.model, tables.Version.version)).all()
        missing = [key for key in keys if wire.VersionRef(model=key[0], version=key[1]) not in self._versions]
        for model, number in missing:
            row = session.get(tables.Version, (model, number))
            assert row is not None
            manifest = Manifest.model_validate(row.manifest)
            version = facts.Version(model=model, version=number, manifest=manifest)
            self._versions[version.ref] = version

    def _load_configs(self, session: Session, revisions: set[str | None]) -> None:
        wanted = {revision for revision in revisions if revision is not None}
        kept = {revision: self._configs[revision] for revision in wanted if revision in self._configs}
        self._configs = kept | published.config_bodies(session, wanted - kept.keys())

    def _replicas(self, session: Session) -> tuple[facts.Replica, ...]:
        known, self._reports = self._reports, {}
        found: list[facts.Replica] = []
        for row in reports.replicas(session):
            fingerprint, report = known.get(row.name, ("", None))
            if report is None or fingerprint != row.fingerprint:
                report = wire.ReplicaReport.model_validate(row.report)
            self._reports[row.name] = (row.fingerprint, report)
            found.append(facts.Replica(report=report, last_seen=row.last_seen))
        return tuple(found)

    def _gateway(self, row: tables.Gateway) -> facts.Gateway:
        report = wire.GatewayReport.model_validate(row.report)
        applied = self._configs.get(report.applied_revision) if report.applied_revision else None
        return facts.Gateway(report=report, last_seen=row.last_seen, applied=applied)


def observing_since(session: Session, *, now: datetime) -> datetime:
    """Since when some control plane has been listening without a gap; says so if there is one now."""
    row = session.get(tables.Controller, 1)
    if row is None or (now - row.reconciled_at).total_seconds() > BLIND_AFTER_S:
        return now
    return row.observing_since


def note_reconciled(session: Session, *, now: datetime, observing_since: datetime) -> None:
    """Call under ``exclusive``."""
    row = session.get(tables.Controller, 1)
    if row is None:
        session.add(tables.Controller(id=1, reconciled_at=now, observing_since=observing_since))
    elif (now - row.reconciled_at).total_seconds() > BLIND_AFTER_S / 5 or row.observing_since != observing_since:
        row.reconciled_at, row.observing_since = now, observing_since
